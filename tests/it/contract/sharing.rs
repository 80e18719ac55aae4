//! SHARE_THRESHOLD: one count for all values that a pattern matches.

use super::{Case, Pod, World, in_every_world};

const RULES: &str = include_str!("../../rules/ok/share_threshold.yaml");

in_every_world!(values_of_one_pattern_share_a_count);

async fn values_of_one_pattern_share_a_count(world: World) {
    let mut pod = Pod::start(world, &[("share_threshold.yaml", RULES)], &[]).await;
    let rows = [
        Case(
            "files",
            "(files,files/a.pdf) | (files,files/b.csv) | (files,files/c.txt)",
            "OK 99/100 HOUR | OK 98/100 HOUR | OK 97/100 HOUR",
        ),
        Case(
            "on the second level",
            "(nested,parent)(files,nested/a) | (nested,parent)(files,nested/b)",
            "OK 199/200 HOUR | OK 198/200 HOUR",
        ),
        Case(
            "on both levels",
            "(files,top/a)(files,nested/a) | (files,top/b)(files,nested/b)",
            "OK 299/300 HOUR | OK 298/300 HOUR",
        ),
        Case(
            "above a key alone, whose values count apart",
            "(route,api/v1)(method,GET) | (route,api/v2)(method,GET) | (route,api/v1)(method,PUT)",
            "OK 59/60 MINUTE | OK 58/60 MINUTE | OK 59/60 MINUTE",
        ),
        Case(
            "above a detailed metric",
            "(service,svc/user)(endpoint,get) | (service,svc/item)(endpoint,get)",
            "OK 79/80 MINUTE | OK 78/80 MINUTE",
        ),
        Case(
            "over path, apart by file",
            "(path,path/foo)(file,file/doc1)(type,pdf) | (path,path/bar)(file,file/doc1)(type,pdf) \
             | (path,path/foo)(file,file/doc2)(type,pdf)",
            "OK 119/120 MINUTE | OK 118/120 MINUTE | OK 119/120 MINUTE",
        ),
        Case(
            "over two levels of three",
            "(user,user/a)(resource,res/a)(action,read) \
             | (user,user/b)(resource,res/b)(action,read)",
            "OK 149/150 MINUTE | OK 148/150 MINUTE",
        ),
        Case(
            "an exact value has its own",
            "(file,test1) | (file,test2) | (file,test23) | (file,test123) | (file,test1)",
            "OK 49/50 MINUTE | OK 99/100 MINUTE | OK 98/100 MINUTE | OK 97/100 MINUTE \
             | OK 48/50 MINUTE",
        ),
        Case(
            "star in the middle",
            "(midpath,/api/v1) | (midpath,/api-beta-v1) | (midpath,/apiXYZv1) | (midpath,/api/v2)",
            "OK 99/100 MINUTE | OK 98/100 MINUTE | OK 97/100 MINUTE | none",
        ),
        Case(
            "several stars",
            "(multiroute,svcAepBrpc) | (multiroute,svceprpc) | (multiroute,svcABCrpc)",
            "OK 49/50 MINUTE | OK 48/50 MINUTE | none",
        ),
        Case(
            "several levels with stars in the middle",
            "(tenant,t1prod)(resource,resAv2) | (tenant,t99prod)(resource,resBBBv2)",
            "OK 59/60 MINUTE | OK 58/60 MINUTE",
        ),
    ];
    pod.check("test-domain", &rows).await;
}
