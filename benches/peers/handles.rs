//! Get the live handle: what every request asks first.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::{ArcSwap, Cache};
use criterion::Criterion;
use deadpool::managed::{Manager, Metrics, Pool, RecycleResult};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use steadfast::{Connector, Link, Supervisor, connector_fn};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::crew::{Path, Way, async_way, way};
use crate::table::{Aim, Report};

pub(crate) fn bench(criterion: &mut Criterion, report: &mut Report) {
    let runtime = Runtime::new().expect("a runtime");
    let connector = connector_fn("bench://live:1", |_| async { Ok::<_, Infallible>(Client::default()) });
    let supervisor = Supervisor::new(connector);
    let link = runtime.block_on(async {
        let link = supervisor.keep().expect("it is idle");
        link.ready().await.expect("it connects");
        link
    });
    let shared = Arc::new(Client::default());
    let base = way("clone of an `Arc`", move || Arc::clone(&shared), |client| drop(black_box(Arc::clone(client))));
    let mut ways = ours(&link);
    ways.extend(by_hand());
    ways.extend(pools(&runtime));
    let title = "Get the live handle (base: clone of an `Arc`)";
    let aims = vec![
        Aim::Flat("`CachedLink::current`", 1.6),
        Aim::Times("`CachedLink::current`", &["mutex + clone"], 0.1),
        Aim::Times("`CachedLink::current`", &["watch `borrow().clone()`"], 0.1),
        Aim::Times("`CachedLink::current`", &["redis ConnectionManager's way"], 0.1),
        Aim::Flat("`Link::current`", 1.6),
        Aim::Times("`Link::current`", &["arc-swap `load`"], 1.3),
    ];
    Path { name: "handle", title, base, ways, threads: &[1, 2], aims }.bench(criterion, report);
}

/// What is connected: who has it may use it.
#[derive(Default)]
struct Client {
    number: AtomicU64,
}

fn ours<C: Connector>(link: &Link<C>) -> Vec<Way>
where
    C::Connection: Sync,
{
    let links = || {
        let link = link.clone();
        move || link.clone()
    };
    let (cached, held) = (links(), link.clone());
    vec![
        way(
            "`CachedLink::current`",
            move || cached().cached(),
            |link| {
                black_box(link.current().map(|live| &**live));
            },
        ),
        way("`Link::current`", links(), |link| {
            black_box(link.current().as_deref());
        }),
        way(
            "`Link::current`, eight held on this thread",
            move || ([(); 8].map(|()| held.current()), held.clone()),
            |(_, link)| {
                black_box(link.current().as_deref());
            },
        ),
        way("`Link::ready`", links(), |link| {
            let live = link.ready().now_or_never().expect("it is up").expect("it is up");
            black_box(&*live);
        }),
    ]
}

/// What one would write oneself.
fn by_hand() -> Vec<Way> {
    let number = Arc::new(Client::default());
    let swap = Arc::new(ArcSwap::from_pointee(Client::default()));
    let swaps = || {
        let swap = Arc::clone(&swap);
        move || Arc::clone(&swap)
    };
    let mutex = Arc::new(Mutex::new(Arc::new(Client::default())));
    let (sender, receiver) = watch::channel(Arc::new(Client::default()));
    let cache = swaps();
    // Redis's ConnectionManager by its shape: a future that has resolved, shared and swapped for the next one at a loss.
    let dialled: Dialled = async { Ok(Arc::new(Client::default())) }.boxed().shared();
    let manager = Arc::new(ArcSwap::from_pointee(dialled));
    vec![
        way(
            "limit: one relaxed load",
            move || Arc::clone(&number),
            |client| {
                black_box(client.number.load(Ordering::Relaxed));
            },
        ),
        way(
            "arc-swap `Cache::load`",
            move || Cache::new(cache()),
            |cache| {
                black_box(&**cache.load());
            },
        ),
        way("arc-swap `load`", swaps(), |swap| {
            black_box(&**swap.load());
        }),
        way("arc-swap `load_full`", swaps(), |swap| {
            black_box(&*swap.load_full());
        }),
        way(
            "mutex + clone",
            move || Arc::clone(&mutex),
            |mutex| {
                let client = Arc::clone(&mutex.lock().expect("nobody panics"));
                black_box(&*client);
            },
        ),
        way(
            "watch `borrow().clone()`",
            move || (sender.clone(), receiver.clone()),
            |(_, receiver)| {
                let client = Arc::clone(&receiver.borrow());
                black_box(&*client);
            },
        ),
        way(
            "redis ConnectionManager's way",
            move || Arc::clone(&manager),
            |manager| {
                let dialled = Shared::clone(&manager.load());
                let client = dialled.now_or_never().expect("it has resolved").expect("it is connected");
                black_box(&*client);
            },
        ),
    ]
}

type Dialled = Shared<BoxFuture<'static, Result<Arc<Client>, Infallible>>>;

/// Pools lend an object each; it goes back when it is dropped.
fn pools(runtime: &Runtime) -> Vec<Way> {
    let _guard = runtime.enter();
    let deadpool = Pool::<Dialler>::builder(Dialler).max_size(8).build().expect("a pool");
    let bb8 = runtime.block_on(bb8::Pool::builder().max_size(8).build(Dialler)).expect("a pool");
    vec![
        async_way(
            "deadpool get + drop",
            move || deadpool.clone(),
            async |pool| {
                black_box(&*pool.get().await.expect("there are enough"));
            },
        ),
        async_way(
            "bb8 get + drop",
            move || bb8.clone(),
            async |pool| {
                black_box(&*pool.get().await.expect("there are enough"));
            },
        ),
    ]
}

struct Dialler;

impl Manager for Dialler {
    type Type = Client;
    type Error = Infallible;

    async fn create(&self) -> Result<Client, Infallible> {
        Ok(Client::default())
    }

    async fn recycle(&self, _: &mut Client, _: &Metrics) -> RecycleResult<Infallible> {
        Ok(())
    }
}

impl bb8::ManageConnection for Dialler {
    type Connection = Client;
    type Error = Infallible;

    async fn connect(&self) -> Result<Client, Infallible> {
        Ok(Client::default())
    }

    async fn is_valid(&self, _: &mut Client) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Client) -> bool {
        false
    }
}
