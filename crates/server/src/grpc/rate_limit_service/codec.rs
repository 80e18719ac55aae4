//! tonic's codec for requests and answers: messages are bytes, which `decode.rs` reads and
//! `encode.rs` has written.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Passes messages through unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::grpc) struct Codec;

/// Decodes the only message of a call.
#[derive(Debug, Default)]
pub(in crate::grpc) struct SingleMessageDecoder {
    has_read: bool,
}

/// Capacity that tonic reserves for a message before its length is known, and its threshold for
/// yielding to other tasks. tonic's default would reserve 8 KiB, twice for each call that waits.
fn buffers() -> BufferSettings {
    BufferSettings::new(512, 32 * 1024)
}

impl tonic::codec::Codec for Codec {
    type Encode = BytesMut;
    type Decode = Bytes;
    type Encoder = Codec;
    type Decoder = SingleMessageDecoder;

    fn encoder(&mut self) -> Codec {
        Codec
    }

    fn decoder(&mut self) -> SingleMessageDecoder {
        SingleMessageDecoder::default()
    }
}

impl Encoder for Codec {
    type Item = BytesMut;
    type Error = Status;

    fn encode(&mut self, message: BytesMut, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

impl Decoder for SingleMessageDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        if std::mem::replace(&mut self.has_read, true) {
            return Err(Status::unimplemented("more than one message in a call that takes one"));
        }
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}
