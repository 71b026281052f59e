//! The conformance suite on the broker in memory.

mod suite {
    use windjet_mq::mqtest::MemoryInstance;

    windjet_mq::mq_conformance! {
        #[tokio::test(start_paused = true)]
        async fn instance() -> MemoryInstance {
            MemoryInstance::start().await
        }
    }
}
