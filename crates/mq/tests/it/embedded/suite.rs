//! The conformance suite.

use std::sync::Arc;

use bytes::Bytes;
use windjet_mq::mqtest::{BUDGET, Capabilities, DURABLE, Instance};
use windjet_mq::{Broker, Ctx, ErrorKind, PublishOptions, Publisher as _, TenantId, Topic, async_trait};
use windjet_server::jetstream::StreamConfig;

use super::Store;

pub(super) struct EmbeddedInstance(Store);

windjet_mq::mq_conformance! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn instance() -> EmbeddedInstance {
        fresh().await
    }
}

pub(super) async fn fresh() -> EmbeddedInstance {
    let store = Store::start().await;
    for id in ["acme", "globex"] {
        store.budget(id, BUDGET).await;
    }
    EmbeddedInstance(store)
}

#[async_trait]
impl Instance for EmbeddedInstance {
    fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(self.0.broker())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            per_tenant_budget: true,
            purges_acked: true,
            unbudgeted_not_found: true,
            configures_durables: true,
            subscription_redelivers: true,
            orders_tenants: true,
        }
    }

    async fn end_delivery(&self) {
        let js = self.0.js();
        for stream in js.stream_names() {
            if stream.starts_with("INGEST_") {
                js.delete_consumer(&stream, DURABLE).await.unwrap();
            }
        }
    }

    async fn fill(&self, tenant: &TenantId) -> bool {
        let (ctx, topic) = (Ctx::new(), Topic::new(tenant.clone(), "filler"));
        let broker = self.0.broker();
        broker.set_max_bytes(&ctx, tenant, 4096).await.unwrap();
        for size in [1024, 1] {
            loop {
                let data = Bytes::from(vec![b'x'; size]);
                let published = broker.publish(&ctx, &topic, data, PublishOptions::new()).await;
                if let Err(error) = published {
                    assert!(error.is(ErrorKind::QueueFull), "{error:#}");
                    break;
                }
            }
        }
        true
    }

    async fn refuse_opening(&self, tenant: &TenantId, refuse: bool) -> bool {
        let js = self.0.js();
        // Its subjects are a queue's of the tenant, which cannot be made beside it.
        let name = format!("ROGUE_{tenant}");
        if refuse {
            let config = StreamConfig {
                name,
                subjects: vec![format!("ingest.{tenant}.>")],
                ..StreamConfig::default()
            };
            js.create_stream(config).await.unwrap();
        } else {
            js.delete_stream(&name).await.unwrap();
        }
        true
    }

    async fn restart(&self) -> Option<Arc<dyn Broker>> {
        Some(Arc::new(self.0.restart().await))
    }
}
