//! Handlers of values instead of messages.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Disposition, Handler, HandlerError, Outcome};
use crate::delivery::Delivery;
use crate::message::{MessageType, codec};

/// A handler of decoded values; made by [`typed`].
pub struct Typed<T, F> {
    message_type: Option<MessageType>,
    function: F,
    value: PhantomData<fn() -> T>,
}

/// A handler of decoded Protobuf messages; made by [`typed_proto`].
pub struct TypedProto<T, F> {
    function: F,
    value: PhantomData<fn() -> T>,
}

/// A handler that decodes the payload, as the type given or as the headers say, and calls `function` with subject and
/// value. What cannot be decoded is [`HandlerError::Undecodable`], and `function` is not called.
pub fn typed<T, F, Fut, R, E>(message_type: Option<MessageType>, function: F) -> Typed<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(String, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Disposition>,
    E: Into<HandlerError>,
{
    Typed {
        message_type,
        function,
        value: PhantomData,
    }
}

/// As [`typed`], for Protobuf.
pub fn typed_proto<T, F, Fut, R, E>(function: F) -> TypedProto<T, F>
where
    T: prost::Message + Default + 'static,
    F: Fn(String, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Disposition>,
    E: Into<HandlerError>,
{
    TypedProto {
        function,
        value: PhantomData,
    }
}

impl<T, F, Fut, R, E> Handler for Typed<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(String, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Disposition>,
    E: Into<HandlerError>,
{
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let value = codec::decode_msg(delivery.message(), self.message_type)?;
        let subject = delivery.subject.to_string();
        (self.function)(subject, value)
            .await
            .map(Into::into)
            .map_err(Into::into)
    }
}

impl<T, F, Fut, R, E> Handler for TypedProto<T, F>
where
    T: prost::Message + Default + 'static,
    F: Fn(String, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<R, E>> + Send,
    R: Into<Disposition>,
    E: Into<HandlerError>,
{
    async fn handle(&self, delivery: Arc<Delivery>) -> Outcome {
        let value = codec::decode_proto(&delivery.payload)?;
        let subject = delivery.subject.to_string();
        (self.function)(subject, value)
            .await
            .map(Into::into)
            .map_err(Into::into)
    }
}

impl<T, F> std::fmt::Debug for Typed<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Typed")
            .field("message_type", &self.message_type)
            .finish_non_exhaustive()
    }
}

impl<T, F> std::fmt::Debug for TypedProto<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TypedProto")
    }
}
