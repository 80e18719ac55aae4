//! What `app` must do.

use super::*;

#[test]
fn the_limit_is_raised_to_what_may_be_and_a_part_of_it_is_for_redis() {
    raise_limit();
    let limit = getrlimit(Resource::Nofile);
    assert_eq!(limit.current, limit.maximum);
    assert_eq!(redis_connections_max(5, 1), 5);
    let all = redis_connections_max(usize::MAX, 1);
    assert!(all >= REDIS_CONNECTIONS_MIN);
    assert!(redis_connections_max(usize::MAX, 8) <= all.max(REDIS_CONNECTIONS_MIN));
}

mod threads {
    use super::super::*;

    #[tokio::test]
    async fn tasks_run_on_the_threads_they_are_given_to_until_the_threads_end() {
        let threads = Threads::start(Some(2)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(threads.runtimes.len(), 4);
        let name = || thread::current().name().map(str::to_owned);
        let mut names = Vec::new();
        for runtime in threads.runtimes.iter().take(3) {
            names.push(runtime.spawn(async move { name() }).await.unwrap().unwrap());
        }
        assert_eq!(names, ["ratelease-core0", "ratelease-core1", "ratelease-pages"]);
        let endless = threads.pages.spawn(std::future::pending::<()>());
        drop(threads);
        assert!(endless.await.is_err_and(|ended| ended.is_cancelled()));
    }
}
