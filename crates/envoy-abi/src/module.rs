//! The traits that a module implements. All of it is safe code: `hooks` calls it, and catches its
//! panics.

use crate::bootstrap::BootstrapHost;
use crate::stream::{Flow, Setup, Stream};

/// A module: how its configurations are made.
pub trait Module: Sized + 'static {
    /// The configuration of a filter, which makes one filter for each stream.
    type Config: Config<Module = Self>;
    /// The configuration of a route or virtual host for the module.
    type RouteConfig: Send + Sync + 'static;
    /// State that lives as long as Envoy's process, if the bootstrap configuration names the
    /// module.
    type Bootstrap: Bootstrap;

    /// Makes the configuration of a filter; `None` has Envoy refuse it. In the main thread.
    fn config(setup: &mut Setup<'_>, name: &[u8], config: &[u8]) -> Option<Self::Config>;

    /// Makes the configuration of a route; `None` has Envoy refuse it. In the main thread.
    fn route_config(name: &[u8], config: &[u8]) -> Option<Self::RouteConfig>;

    /// Makes the extension of the bootstrap configuration; `None` has Envoy not start.
    fn bootstrap(host: &BootstrapHost<'_>, name: &[u8], config: &[u8]) -> Option<Self::Bootstrap>;
}

/// The configuration of a filter. Workers share it, and any thread may drop it.
pub trait Config: Send + Sync + 'static {
    /// The module.
    type Module: Module<Config = Self>;
    /// The filter of one stream.
    type Filter: Filter<Module = Self::Module>;

    /// Makes the filter of a stream that begins.
    fn filter(&self) -> Self::Filter;
}

/// The stream of a filter, whose routes have the configurations of its module.
pub type FilterStream<'h, F> = Stream<'h, <<F as Filter>::Module as Module>::RouteConfig>;

/// The filter of one stream, which lives in one worker's thread.
///
/// Envoy may call one hook of a stream within another: [`Stream::resume`] and [`Stream::respond`]
/// run the next hooks before they return. So hooks share the filter.
pub trait Filter: 'static {
    /// The module.
    type Module: Module;

    /// The headers of the request have arrived.
    fn request_headers(
        &self,
        config: &<Self::Module as Module>::Config,
        stream: FilterStream<'_, Self>,
    ) -> Flow;

    /// The headers of the response are there: a server's or a local reply's.
    fn response_headers(
        &self,
        config: &<Self::Module as Module>::Config,
        stream: FilterStream<'_, Self>,
    );

    /// An event has come that a [`crate::Scheduler`] has sent. If the request was stopped and
    /// this panics, the request goes on.
    fn scheduled(
        &self,
        config: &<Self::Module as Module>::Config,
        stream: FilterStream<'_, Self>,
        event: u64,
    );

    /// The stream is over, and nothing has been logged of it yet.
    fn complete(&self, config: &<Self::Module as Module>::Config, stream: FilterStream<'_, Self>);
}

/// The extension of the bootstrap configuration. All is called in the main thread.
pub trait Bootstrap: 'static {
    /// Envoy has its admin port and its clusters.
    fn initialized(&self, host: &BootstrapHost<'_>);

    /// An event has come that a [`crate::ConfigScheduler`] has sent.
    fn scheduled(&self, host: &BootstrapHost<'_>, event: u64);

    /// Envoy ends: this returns once all that has to be brought to an end is. The main thread
    /// waits for it.
    fn shut_down(&self);

    /// Answers a request to a prefix of the admin port with a status and a body.
    fn admin(&self, method: &[u8], path: &[u8], body: &[u8]) -> (u32, Vec<u8>);
}
