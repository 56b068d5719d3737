//! May I call? What a call asks a gate, and what it pays a breaker for the permit and the success.

use std::convert::Infallible;
use std::future::ready;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use circuitbreaker_rs::{CircuitBreaker, DefaultPolicy};
use criterion::Criterion;
use failsafe::{CircuitBreaker as _, Config, backoff, failure_policy};
use recloser::Recloser;
use steadfast::Gate;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_resilience::circuitbreaker::CircuitBreakerLayer;

use crate::crew::{Path, Way, async_way, way};
use crate::table::{Aim, Report};

pub(crate) fn bench(criterion: &mut Criterion, report: &mut Report) {
    let gate = Gate::builder("bench://gate:1").build().expect("a valid policy");
    let (count, flag) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
    let base = way(
        "one relaxed `fetch_add`",
        move || Arc::clone(&count),
        |count| {
            black_box(count.fetch_add(1, Ordering::Relaxed));
        },
    );
    let mut ways = vec![
        way(
            "`Gate::is_closed`",
            move || gate.clone(),
            |gate| {
                black_box(gate.is_closed());
            },
        ),
        way(
            "limit: one relaxed load",
            move || Arc::clone(&flag),
            |flag| {
                black_box(flag.load(Ordering::Relaxed));
            },
        ),
    ];
    ways.extend(breakers());
    let title = "May I call? (base: one relaxed `fetch_add`; the breakers: permit + success while closed)";
    let aims = vec![Aim::Flat("`Gate::is_closed`", 1.6)];
    Path { name: "may_i_call", title, base, ways, threads: &[1, 2], aims }.bench(criterion, report);
}

fn breakers() -> Vec<Way> {
    let recloser = Arc::new(Recloser::default());
    let steps = backoff::equal_jittered(Duration::from_secs(10), Duration::from_secs(300));
    let row = Arc::new(Config::new().failure_policy(failure_policy::consecutive_failures(5, steps)).build());
    let rate = Arc::new(Config::new().build());
    let nobreak = Arc::new(nobreak::breaker());
    let circuitbreaker = CircuitBreaker::<DefaultPolicy, io::Error>::builder().build();
    let layer = CircuitBreakerLayer::builder().build().expect("the defaults are valid");
    let service = layer.layer(service_fn(|()| ready(Ok::<_, Infallible>(()))));
    vec![
        way(
            "recloser",
            move || Arc::clone(&recloser),
            |breaker| {
                let _ = black_box(breaker.call(|| Ok::<_, ()>(())));
            },
        ),
        way(
            "failsafe, consecutive failures",
            move || Arc::clone(&row),
            |breaker| {
                let _ = black_box(breaker.call(|| Ok::<_, ()>(())));
            },
        ),
        way(
            "failsafe, default",
            move || Arc::clone(&rate),
            |breaker| {
                let _ = black_box(breaker.call(|| Ok::<_, ()>(())));
            },
        ),
        way(
            "nobreak",
            move || Arc::clone(&nobreak),
            |breaker| {
                let _ = black_box(breaker.call(|| Ok::<_, ()>(())));
            },
        ),
        way(
            "circuitbreaker-rs",
            move || circuitbreaker.clone(),
            |breaker| {
                let _ = black_box(breaker.call(|| Ok::<_, io::Error>(())));
            },
        ),
        async_way(
            "tower-resilience 0.13",
            move || service.clone(),
            async |service| {
                let ready = service.ready().await.expect("it is closed");
                black_box(ready.call(()).await).expect("it is closed");
            },
        ),
    ]
}
