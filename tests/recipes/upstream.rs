//! The application behind Envoy. It answers 200 to all requests, with the header `x-app`; with the
//! value of the request's `x-answer-cost`, if any, in `x-cost`.

use std::net::SocketAddr;
use std::sync::LazyLock;

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use tokio::runtime::Builder;

/// The header of its answers: an answer without it is Envoy's own.
pub const MARK: &str = "x-app";

/// One for all tests, in a thread of its own, since the runtime of a test ends with the test.
static APP: LazyLock<SocketAddr> = LazyLock::new(|| {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket that does not block");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            let app = axum::Router::new().fallback(answer);
            axum::serve(listener, app).await.expect("the application serves");
        });
    });
    address
});

/// Its address.
pub fn address() -> SocketAddr {
    *APP
}

async fn answer(headers: HeaderMap) -> Response {
    let mut response = ([(MARK, "1")], "ok\n").into_response();
    if let Some(cost) = headers.get("x-answer-cost") {
        response.headers_mut().insert("x-cost", cost.clone());
    }
    response
}
