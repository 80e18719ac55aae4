//! Calls of MCP tools, by name.

use serde_json::json;

use crate::recipe::{Recipe, assert_quota};

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
    // What cannot be read as one request counts as a tool, whoever hides what it calls.
    for (body, content_type) in [
        (r#"[{"method":"tools/call","params":{"name":"search"}}]"#, "application/json"),
        (r#"{"method":"tools/call","params":{"name":"search"}}"#, "text/plain"),
        (r#"{"method":"tools/call","params":{"name":["search"]}}"#, "application/json"),
        (r#"{"method":"tools/call","params":{"name":"search"}"#, "application/json"),
        ("", "application/json"),
    ] {
        let headers = [("x-user-id", "alice"), ("content-type", content_type)];
        let answer = recipe.send_body("POST", "/mcp", &headers, body).await;
        assert_eq!(answer.status, 200, "{body}");
        passed += 1;
    }
    assert_eq!(send("alice", "[]").await.status, 429);
    denied += 1;
    recipe.end(passed, denied).await;
}
