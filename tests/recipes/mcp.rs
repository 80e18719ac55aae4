//! Calls of MCP tools, by name.

use serde_json::json;

use crate::recipe::{Recipe, assert_quota};
use crate::upstream;

/// What servers may read in another way than Envoy, with its content type and the status.
const REFUSED: [(&str, &str, u16); 20] = [
    (r#"[{"method":"tools/call","params":{"name":"search"}}]"#, JSON, 400),
    ("[]", JSON, 400),
    ("", JSON, 400),
    (SEARCH, "text/plain", 400),
    (SEARCH, "", 400),
    (SEARCH, "application/json, text/plain", 400),
    (r#"{"method":"tools/call","params":{"name":"search"}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":["search"]}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":""}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":7}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"Name":"delete_all"}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":"search","NAME":"delete_all"}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":"search","name":"delete_all"}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":"search","n\u0061me":"delete_all"}}"#, JSON, 400),
    (
        r#"{"method":"tools/call","params":{"name":"search"},"Params":{"name":"delete_all"}}"#,
        JSON,
        400,
    ),
    (r#"{"METHOD":"tools/call","params":{"name":"delete_all"}}"#, JSON, 400),
    (r#"{"method":"Tools/Call","params":{"name":"delete_all"}}"#, JSON, 400),
    (r#"{"method":"tools/call ","params":{"name":"delete_all"}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":"delete_all","x":NaN}}"#, JSON, 400),
    (r#"{"method":"tools/call","params":{"name":"delete_all","x":"\ud800"}}"#, JSON, 400),
];

const JSON: &str = "application/json";
const SEARCH: &str = r#"{"method":"tools/call","params":{"name":"search"}}"#;

#[tokio::test]
async fn mcp_tools() {
    limits_tools(Recipe::start("mcp-tools", "ingress").await).await;
}

pub async fn limits_tools(recipe: Recipe) {
    let send = async |user: &str, body: &str| {
        recipe.send_body("POST", "/mcp", &[("x-user-id", user)], body).await
    };
    let call = async |user: &str, tool: &str| {
        let arguments = json!({"name": "delete_all"}); // not the tool's name
        let params = json!({"name": tool, "arguments": arguments});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        send(user, &call.to_string()).await
    };
    for left in (0..5).rev() {
        assert_quota(&call("alice", "weather").await, 200, "5, 5;w=3600", left);
    }
    assert_quota(&call("alice", "weather").await, 429, "5, 5;w=3600", 0);
    assert_quota(&call("bob", "weather").await, 200, "5, 5;w=3600", 4);
    // All that delete share one count.
    assert_eq!(call("alice", "delete_file").await.status, 200);
    assert_eq!(call("alice", "delete_user").await.status, 429);
    let (mut passed, mut denied) = (7, 2);
    for _ in 0..10 {
        assert_eq!(call("alice", "search").await.status, 200);
        let other = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
        assert_eq!(send("alice", other).await.status, 200);
        let stream = recipe.get("/mcp", &[("x-user-id", "alice")]).await;
        assert_eq!(stream.status, 200);
        passed += 2;
    }
    // A client's answer to the server calls nothing.
    assert_eq!(send("alice", r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await.status, 200);
    passed += 1;
    let charset = [("x-user-id", "alice"), ("content-type", "application/json; charset=utf-8")];
    let search = r#"{"method":"tools/call","params":{"name":"sea\u0072ch"}}"#;
    assert_eq!(recipe.send_body("POST", "/mcp", &charset, search).await.status, 200);
    passed += 1;
    // All other names share one count, so that no spelling of a name has its own.
    for number in 0..5 {
        assert_eq!(call("alice", &format!("Weather{number}")).await.status, 200);
        passed += 1;
    }
    for name in ["weather ", "WEATHER", "Delete_all", " delete_all", "\u{0}"] {
        assert_eq!(call("alice", name).await.status, 429, "{name}");
        denied += 1;
    }
    for (body, content_type, status) in REFUSED {
        let headers = [("x-user-id", "carol"), ("content-type", content_type)];
        let answer = recipe.send_body("POST", "/mcp", &headers, body).await;
        assert_eq!(answer.status, status, "{body}");
        assert_eq!(answer.header(upstream::MARK), None, "{body}");
    }
    let gzip = [("x-user-id", "carol"), ("content-encoding", "gzip")];
    assert_eq!(recipe.send_body("POST", "/mcp", &gzip, search).await.status, 415);
    assert_eq!(recipe.send_body("POST", "/mcp", &[], search).await.status, 401);
    assert_eq!(recipe.send_body("PUT", "/mcp", &charset, search).await.status, 404);
    recipe.end(passed, denied).await;
}
