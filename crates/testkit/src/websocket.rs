//! The client's side of WebSocket framing, as raw as tests need it.
//!
//! [`Frame`] can be written with any bits set or missing, and every frame of a server is handed out as it came; a
//! well-behaved library would hide both. Client frames are masked with a fixed key: nothing here is secret.

const MASK: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

/// One WebSocket frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The first byte: FIN, reserved bits and opcode.
    pub head: u8,
    /// Whether it is masked.
    pub masked: bool,
    /// The payload, unmasked.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A whole binary message, masked as a client must.
    #[must_use]
    pub fn binary(payload: Vec<u8>) -> Self {
        Self {
            head: 0x82,
            masked: true,
            payload,
        }
    }

    /// The opcode: 0 continuation, 1 text, 2 binary, 8 close, 9 ping, 10 pong.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.head & 0x0f
    }

    /// The frame's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mask_bit = if self.masked { 0x80 } else { 0 };
        let mut out = vec![self.head];
        match self.payload.len() {
            len @ 0..126 => out.push(mask_bit | len as u8),
            len @ 126..0x1_0000 => {
                out.push(mask_bit | 126);
                out.extend_from_slice(&(len as u16).to_be_bytes());
            }
            len => {
                out.push(mask_bit | 127);
                out.extend_from_slice(&(len as u64).to_be_bytes());
            }
        }
        if self.masked {
            out.extend_from_slice(&MASK);
            out.extend(
                self.payload
                    .iter()
                    .zip(MASK.iter().cycle())
                    .map(|(byte, mask)| byte ^ mask),
            );
        } else {
            out.extend_from_slice(&self.payload);
        }
        out
    }

    /// Takes the first frame out of `buffer`; `None` when it is not all there yet.
    pub fn take(buffer: &mut Vec<u8>) -> Option<Self> {
        let (&head, &second) = (buffer.first()?, buffer.get(1)?);
        let (len, mut at) = match second & 0x7f {
            126 => (
                u64::from(u16::from_be_bytes(buffer.get(2..4)?.try_into().ok()?)),
                4,
            ),
            127 => (u64::from_be_bytes(buffer.get(2..10)?.try_into().ok()?), 10),
            short => (u64::from(short), 2),
        };
        let masked = second & 0x80 != 0;
        let mask: [u8; 4] = if masked {
            at += 4;
            buffer.get(at - 4..at)?.try_into().ok()?
        } else {
            [0; 4]
        };
        let end = at.checked_add(usize::try_from(len).ok()?)?;
        let payload = buffer
            .get(at..end)?
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask);
        let payload = payload.collect();
        buffer.drain(..end);
        Some(Self {
            head,
            masked,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_length_class_come_back() {
        for len in [0, 1, 125, 126, 65_535, 65_536] {
            for masked in [false, true] {
                let frame = Frame {
                    head: 0x81,
                    masked,
                    payload: vec![7; len],
                };
                let mut bytes = frame.encode();
                bytes.push(0xff);
                assert_eq!(Frame::take(&mut bytes), Some(frame));
                assert_eq!(bytes, [0xff]);
            }
        }
    }

    #[test]
    fn a_frame_waits_for_its_last_byte() {
        let whole = Frame::binary(vec![1; 300]).encode();
        for cut in 0..whole.len() {
            assert_eq!(Frame::take(&mut whole[..cut].to_vec()), None);
        }
    }
}
