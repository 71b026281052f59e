//! A small stock of buffers per thread, so that idle connections hold none and busy ones allocate none.

use std::cell::RefCell;

/// Capacity of a fresh read buffer.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// Capacity of a fresh write buffer.
const WRITE_BYTES: usize = 4 << 10;
/// Buffers above this capacity are freed instead of kept.
const KEEP_BYTES_MAX: usize = 128 << 10;
/// Buffers kept per thread and kind.
const KEEP_MAX: usize = 32;

#[derive(Default)]
struct Stock {
    read: Vec<Vec<u8>>,
    write: Vec<Vec<u8>>,
}

thread_local! {
    static STOCK: RefCell<Stock> = RefCell::default();
}

/// An empty buffer to read into, of at least [`READ_BYTES`].
pub(crate) fn take_read() -> Vec<u8> {
    STOCK
        .with_borrow_mut(|stock| stock.read.pop())
        .unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
}

/// An empty buffer to collect output in.
pub(crate) fn take_write() -> Vec<u8> {
    STOCK
        .with_borrow_mut(|stock| stock.write.pop())
        .unwrap_or_else(|| Vec::with_capacity(WRITE_BYTES))
}

/// Gives a read buffer back.
pub(crate) fn give_read(buffer: Vec<u8>) {
    keep(buffer, |stock| &mut stock.read);
}

/// Gives an output buffer back.
pub(crate) fn give_write(buffer: Vec<u8>) {
    keep(buffer, |stock| &mut stock.write);
}

fn keep(mut buffer: Vec<u8>, shelf: impl FnOnce(&mut Stock) -> &mut Vec<Vec<u8>>) {
    if buffer.capacity() == 0 || buffer.capacity() > KEEP_BYTES_MAX {
        return;
    }
    buffer.clear();
    STOCK.with_borrow_mut(|stock| {
        let shelf = shelf(stock);
        if shelf.len() < KEEP_MAX {
            shelf.push(buffer);
        }
    });
}
