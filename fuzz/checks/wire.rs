//! What holds for any bytes given to the wire decoders. Used by the fuzz target and by the test that replays its corpus.

use windjet_protocol::wire::{ClientDecoder, DecodeError, ServerDecoder, Step};

/// How a stream ended: the operations as text, and the kind of error, if any.
type Outcome = (Vec<String>, Option<std::mem::Discriminant<DecodeError>>);

/// Decodes the bytes in both directions, whole and cut in several ways, and panics when the results differ.
///
/// Gives the number of operations a client stream and a server stream had.
pub(crate) fn check(bytes: &[u8]) -> (usize, usize) {
    let client = check_cuts(bytes, || {
        let mut decoder = ClientDecoder::new();
        decoder.max_control_line = 256;
        decoder.max_payload = 1024;
        move |buf: &[u8]| decoder.decode(buf).map(|step| show(&step))
    });
    let server = check_cuts(bytes, || {
        let mut decoder = ServerDecoder::new();
        decoder.max_control_line = 1024;
        move |buf: &[u8]| decoder.decode(buf).map(|step| show(&step))
    });
    (client, server)
}

fn show<Op: std::fmt::Debug>(step: &Step<Op>) -> Step<String> {
    match step {
        Step::Op { op, consumed } => Step::Op {
            op: format!("{op:?}"),
            consumed: *consumed,
        },
        Step::Incomplete { want } => Step::Incomplete { want: *want },
    }
}

fn check_cuts<D>(bytes: &[u8], new: impl Fn() -> D) -> usize
where
    D: FnMut(&[u8]) -> Result<Step<String>, DecodeError>,
{
    let whole = drive([bytes], new());
    // The input itself chooses one of the cuts.
    let middle = bytes
        .first()
        .map_or(0, |&first| bytes.len() * usize::from(first) / 256);
    let (head, tail) = bytes.split_at(middle);
    assert_eq!(drive([head, tail], new()), whole, "cut at {middle}");
    for size in [1, 2, 3, 7] {
        assert_eq!(drive(bytes.chunks(size), new()), whole, "chunks of {size}");
    }
    whole.0.len()
}

fn drive<'b>(
    chunks: impl IntoIterator<Item = &'b [u8]>,
    mut decode: impl FnMut(&[u8]) -> Result<Step<String>, DecodeError>,
) -> Outcome {
    let mut buf = Vec::new();
    let mut ops = Vec::new();
    for chunk in chunks {
        buf.extend_from_slice(chunk);
        loop {
            match decode(&buf) {
                Ok(Step::Op { op, consumed }) => {
                    assert!(consumed > 0 && consumed <= buf.len());
                    buf.drain(..consumed);
                    ops.push(op);
                }
                Ok(Step::Incomplete { want }) => {
                    assert!(want > buf.len());
                    break;
                }
                Err(error) => {
                    assert_eq!(decode(&buf), Err(error), "an error must repeat");
                    return (ops, Some(std::mem::discriminant(&error)));
                }
            }
        }
    }
    (ops, None)
}
