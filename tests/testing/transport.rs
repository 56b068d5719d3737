//! Every fault does what it says.

use std::io;
use std::pin::pin;

use steadfast::testing::{Fault, Transport, duplex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use crate::{is_pending, kind, ms, secs};

/// Reads until the end of the stream.
async fn rest(transport: &mut Transport) -> Vec<u8> {
    let mut bytes = Vec::new();
    transport.read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test(start_paused = true)]
async fn bytes_arrive_in_order_both_ways_and_a_drop_is_the_end_of_the_stream() {
    let (mut client, mut server) = duplex(10);
    let numbers: Vec<u8> = (0..=255).collect();
    let sent = numbers.clone();
    let echo = tokio::spawn(async move {
        let mut bytes = [0; 7];
        loop {
            let count = server.read(&mut bytes).await.unwrap();
            if count == 0 {
                return;
            }
            server.write_all(&bytes[..count]).await.unwrap();
        }
    });
    let (mut read, mut write) = tokio::io::split(client);
    let writer = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
        assert_eq!(kind(write.write(b"x").await), io::ErrorKind::BrokenPipe);
        write
    });
    let mut received = Vec::new();
    read.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, numbers);
    echo.await.unwrap();
    client = read.unsplit(writer.await.unwrap());
    assert_eq!(kind(client.write(b"x").await), io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_is_bounded_and_a_slow_reader_holds_the_writer_back() {
    let (mut client, mut server) = duplex(4);
    assert_eq!(client.write(b"123456").await.unwrap(), 4);
    assert!(is_pending(client.write(b"5")).await);
    let mut write = pin!(client.write_all(b"56"));
    assert!(timeout(secs(1), write.as_mut()).await.is_err());
    assert_eq!(server.read_u8().await.unwrap(), b'1');
    assert!(timeout(secs(1), write.as_mut()).await.is_err(), "room for one");
    assert_eq!(server.read_u8().await.unwrap(), b'2');
    timeout(secs(1), write).await.expect("room for both").unwrap();
    drop(client);
    assert_eq!(rest(&mut server).await, b"3456");
}

#[tokio::test(start_paused = true)]
async fn latency_delays_each_byte_and_the_end_of_the_stream_and_nothing_overtakes() {
    let (mut client, mut server) = duplex(64);
    let start = Instant::now();
    client.inject(Fault::Latency(ms(200)));
    server.write_all(b"a").await.unwrap();
    sleep(ms(50)).await;
    client.inject(Fault::Latency(ms(10)));
    server.write_all(b"b").await.unwrap();
    assert_eq!((client.read_u8().await.unwrap(), start.elapsed()), (b'a', ms(200)));
    assert_eq!((client.read_u8().await.unwrap(), start.elapsed()), (b'b', ms(200)));
    client.write_all(b"c").await.unwrap();
    assert_eq!((server.read_u8().await.unwrap(), start.elapsed()), (b'c', ms(210)));
    drop(server);
    assert_eq!((rest(&mut client).await.len(), start.elapsed()), (0, ms(220)));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_connection_is_half_open_until_it_is_healed() {
    let (mut client, mut server) = duplex(4);
    client.inject(Fault::Stall);
    server.write_all(b"1234").await.unwrap();
    assert!(is_pending(server.write(b"5")).await, "the buffer is full");
    assert!(is_pending(client.read_u8()).await);
    client.write_all(b"67").await.unwrap();
    drop(server);
    assert!(is_pending(client.read_u8()).await, "nobody is told");
    client.write_all(b"89").await.unwrap();
    let faults = client.faults();
    let reader = tokio::spawn(async move { (rest(&mut client).await, kind(client.write(b"x").await)) });
    sleep(secs(1)).await;
    faults.heal();
    assert_eq!(reader.await.unwrap(), (b"1234".to_vec(), io::ErrorKind::BrokenPipe));
}

#[tokio::test(start_paused = true)]
async fn a_cut_lets_so_many_bytes_through_and_then_all_is_over() {
    for bytes in [0, 1, 3, 4] {
        let (mut client, mut server) = duplex(64);
        server.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'x');
        server.inject(Fault::CutAfter(bytes));
        let torn = server.write_all(b"1234").await;
        assert_eq!(torn.is_err(), bytes == 0);
        // The other direction is free until then.
        assert_eq!(client.write_all(b"12345").await.is_err(), bytes == 0);
        assert_eq!(rest(&mut client).await, b"1234"[..bytes]);
        assert_eq!(kind(server.write(b"x").await), io::ErrorKind::BrokenPipe);
        assert_eq!(kind(client.write(b"x").await), io::ErrorKind::BrokenPipe);
        assert_eq!(rest(&mut server).await, b"");
        server.faults().heal();
        assert_eq!(rest(&mut client).await, b"", "what is over stays over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_that_has_not_happened_is_healed() {
    let (mut client, mut server) = duplex(64);
    server.inject(Fault::CutAfter(2));
    server.inject(Fault::Trickle);
    server.write_u8(1).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), 1);
    server.faults().heal();
    server.write_all(&[2, 3, 4]).await.unwrap();
    let mut bytes = [0; 3];
    assert_eq!(client.read(&mut bytes).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_reset_fails_whatever_waits_and_whatever_comes() {
    let (mut client, mut server) = duplex(2);
    server.write_all(b"12").await.unwrap();
    let faults = client.faults();
    let writer = tokio::spawn(async move { kind(server.write(b"3").await) });
    let (mut read, mut write) = tokio::io::split(duplex(1).0);
    assert_eq!(read.read(&mut [0]).await.unwrap(), 0, "its other end is gone");
    assert_eq!(kind(write.write(b"x").await), io::ErrorKind::BrokenPipe);
    sleep(secs(1)).await;
    faults.inject(Fault::Reset(io::ErrorKind::ConnectionAborted));
    assert_eq!(writer.await.unwrap(), io::ErrorKind::ConnectionAborted);
    assert_eq!(kind(client.read_u8().await), io::ErrorKind::ConnectionAborted, "what was under way is lost");
    assert_eq!(kind(client.write(b"x").await), io::ErrorKind::ConnectionAborted);
    assert_eq!(kind(client.flush().await), io::ErrorKind::ConnectionAborted);
    faults.heal();
    assert_eq!(kind(client.read_u8().await), io::ErrorKind::ConnectionAborted);
}

#[tokio::test(start_paused = true)]
async fn a_pending_read_sees_a_reset_a_cut_and_a_drop() {
    for fault in [Some(Fault::Reset(io::ErrorKind::ConnectionReset)), Some(Fault::CutAfter(0)), None] {
        let (mut client, server) = duplex(2);
        let reader = tokio::spawn(async move { client.read(&mut [0]).await.map_err(|error| error.kind()) });
        sleep(secs(1)).await;
        match fault {
            Some(fault) => server.inject(fault),
            None => drop(server),
        }
        let expected = if matches!(fault, Some(Fault::Reset(kind)) if kind == io::ErrorKind::ConnectionReset) {
            Err(io::ErrorKind::ConnectionReset)
        } else {
            Ok(0)
        };
        assert_eq!(timeout(secs(1), reader).await.expect("woken").unwrap(), expected, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_waits_for_room_learns_that_the_reader_has_gone() {
    let (mut client, server) = duplex(1);
    client.write_u8(1).await.unwrap();
    let writer = tokio::spawn(async move { kind(client.write(b"x").await) });
    sleep(secs(1)).await;
    drop(server);
    assert_eq!(timeout(secs(1), writer).await.expect("woken").unwrap(), io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn a_trickle_moves_one_byte_at_a_time() {
    let (mut client, mut server) = duplex(64);
    server.inject(Fault::Trickle);
    assert_eq!(server.write(b"123").await.unwrap(), 1);
    server.write_all(b"23").await.unwrap();
    let mut bytes = [0; 8];
    for _ in 0..3 {
        assert_eq!(client.read(&mut bytes).await.unwrap(), 1);
    }
}

#[test]
#[should_panic(expected = "a buffer of 0 bytes")]
fn a_connection_without_a_buffer_is_refused() {
    let _ = duplex(0);
}
