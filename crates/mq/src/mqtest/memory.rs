//! The suite's instance of the broker in memory.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

use super::{BUDGET, Capabilities, DURABLE, Instance};
use crate::{Broker, Ctx, ErrorKind, MemoryBroker, PublishOptions, Publisher as _, TenantId, Topic};

/// A [`MemoryBroker`] for the suite. Run it on a paused clock.
#[derive(Debug)]
pub struct MemoryInstance {
    broker: MemoryBroker,
}

impl MemoryInstance {
    /// A fresh one.
    ///
    /// # Panics
    /// When the broker refuses the budgets.
    pub async fn start() -> Self {
        let broker = MemoryBroker::new();
        for tenant in ["acme", "globex"] {
            let tenant = TenantId::parse(tenant).unwrap();
            broker.set_max_bytes(&Ctx::new(), &tenant, BUDGET).await.unwrap();
        }
        Self { broker }
    }
}

#[async_trait]
impl Instance for MemoryInstance {
    fn broker(&self) -> Arc<dyn Broker> {
        Arc::new(self.broker.clone())
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

    fn now(&self) -> SystemTime {
        self.broker.now()
    }

    async fn end_delivery(&self) {
        self.broker.delete_consumer(DURABLE);
    }

    async fn fill(&self, tenant: &TenantId) -> bool {
        let (ctx, topic) = (Ctx::new(), Topic::new(tenant.clone(), "filler"));
        self.broker.set_max_bytes(&ctx, tenant, 4096).await.unwrap();
        for size in [1024, 1] {
            loop {
                let data = Bytes::from(vec![b'x'; size]);
                let published = self
                    .broker
                    .publish(&ctx, &topic, data, PublishOptions::new())
                    .await;
                if let Err(error) = published {
                    assert!(error.is(ErrorKind::QueueFull), "{error:#}");
                    break;
                }
            }
        }
        true
    }

    async fn refuse_opening(&self, tenant: &TenantId, refuse: bool) -> bool {
        self.broker.refuse_opening(tenant, refuse);
        true
    }
}
