//! HTTP/2 connections without a request.
//!
//! A connection of HTTP/1 is closed when it idles between requests. One of HTTP/2 would keep its
//! place for as long as its client answers pings.

use std::time::Duration;

use tokio::sync::watch;

/// How many streams of a connection are open; none before the first, and for HTTP/1.
#[derive(Clone, Default)]
pub(super) struct Streams(watch::Sender<Option<usize>>);

/// An open stream, from its request until its answer has ended.
pub(super) struct OpenStream(Streams);

impl Streams {
    /// A request has come.
    pub(super) fn open(&self) -> OpenStream {
        self.0.send_modify(|open| *open = Some(open.unwrap_or(0) + 1));
        OpenStream(self.clone())
    }

    /// Returns when no stream has been open for this long, after the first.
    pub(super) async fn idle_for(&self, time: Duration) {
        let mut open = self.0.subscribe();
        loop {
            // The sender is dropped with `self`.
            drop(open.wait_for(|open| *open == Some(0)).await);
            if tokio::time::timeout(time, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open = open.map(|open| open - 1));
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, Bytes};
    use http_body_util::{BodyExt, Empty};
    use hyper::body::Incoming;
    use hyper::client::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::time::Instant;

    use super::*;
    use crate::http::accept::untaken::Untaken;
    use crate::http::accept::{HEAD_TIME_MAX, builder};

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn a_connection_idles_from_the_end_of_its_last_stream() {
        let streams = Streams::default();
        let idle = || tokio::time::timeout(HOUR, streams.idle_for(HEAD_TIME_MAX));
        assert!(idle().await.is_err(), "it has had no stream: it may be of HTTP/1");
        let begun = Instant::now();
        let using = async {
            for _ in 0..3 {
                let (one, other) = (streams.open(), streams.open());
                drop(one);
                tokio::time::sleep(HEAD_TIME_MAX * 2).await;
                drop(other);
                tokio::time::sleep(HEAD_TIME_MAX / 2).await;
            }
        };
        let (idled, ()) = tokio::join!(idle(), using);
        idled.unwrap();
        assert_eq!(begun.elapsed(), HEAD_TIME_MAX * 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_http2_that_answers_pings_alone_is_left() {
        let (here, there) = tokio::io::duplex(64 * 1024);
        let (streams, untaken) = (Streams::default(), Untaken::default());
        let (opening, noted) = (streams.clone(), untaken.clone());
        let service = service_fn(move |_: hyper::Request<Incoming>| {
            let (stream, noted) = (opening.open(), noted.clone());
            async move {
                tokio::time::sleep(HEAD_TIME_MAX * 2).await;
                let answer = hyper::Response::new(noted.noting(Body::from("done"), stream));
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        let builder = builder();
        let serving = async {
            tokio::select! {
                ended = builder.serve_connection(TokioIo::new(there), service) => {
                    unreachable!("its client goes on: {ended:?}")
                }
                () = streams.idle_for(HEAD_TIME_MAX) => {}
            }
        };
        let begun = Instant::now();
        let asking = async {
            let client = http2::Builder::new(TokioExecutor::new());
            let (mut sender, driver) = client.handshake(TokioIo::new(here)).await.unwrap();
            let driver = tokio::spawn(driver);
            let request = hyper::Request::get("http://node/").body(Empty::<Bytes>::new()).unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "done");
            // It keeps its end open until the other closes.
            drop(driver.await);
            drop(sender);
        };
        let ((), ()) = tokio::time::timeout(HOUR, async { tokio::join!(serving, asking) })
            .await
            .expect("the connection is closed");
        assert_eq!(begun.elapsed(), HEAD_TIME_MAX * 3);
    }
}
