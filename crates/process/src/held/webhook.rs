//! Asks a program about each question: a POST with JSON, whose answer is the verdict. Whatever it
//! answers instead, or if it answers nothing, people may still decide.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eyelet_admin::{KeepAsked, VerdictAsked};
use eyelet_client::{HttpServer, RequestLimits, ServerAddress};
use eyelet_config::{HoldSettings, HoldWebhook, Host};
use eyelet_hold::{HoldQuestion, Holds, QUESTIONS_MAX, Which};
use eyelet_telemetry::held::{HeldBy, HeldVerdict};
use http::Request;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, channel};

use crate::held;

/// Questions that a webhook is asked at a time. Each takes a connection.
const ASKED_MAX: usize = 32;
/// For the webhook to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Asks a webhook, if the configuration has one. Its thread ends when another one is configured.
#[derive(Default)]
pub struct WebhookKeeper {
    served: Option<(HoldWebhook, Duration)>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnswerVerdict {
    Allow,
    Refuse,
}

/// The answer of a webhook.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    verdict: AnswerVerdict,
    /// Seconds for which the verdict holds beyond those who wait.
    for_s: Option<u64>,
}

impl WebhookKeeper {
    /// Goes on by a configuration.
    pub fn configure(&mut self, settings: &HoldSettings, holds: &Arc<Holds>) {
        let wanted = settings.webhook.clone().map(|webhook| (webhook, settings.timeout));
        if wanted == self.served {
            return;
        }
        let Some((webhook, timeout)) = wanted.clone() else {
            holds.send_to(None);
            self.served = None;
            return;
        };
        let (sender, questions) = channel(QUESTIONS_MAX);
        let body = {
            let holds = holds.clone();
            move || follow(&webhook, timeout, &holds, questions)
        };
        match std::thread::Builder::new().name("hold-webhook".into()).spawn(body) {
            Ok(_) => {
                // A question that finds the queue full is for people only.
                holds.send_to(Some(Box::new(move |question| _ = sender.try_send(question))));
                self.served = wanted;
            }
            Err(error) => tracing::error!("[hold] webhook: nobody is asked: {error}"),
        }
    }
}

/// The life of the thread: it ends when nobody sends questions any more.
fn follow(
    webhook: &HoldWebhook,
    timeout: Duration,
    holds: &Arc<Holds>,
    mut questions: Receiver<Arc<HoldQuestion>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return tracing::error!("[hold] webhook: nobody is asked: {error}"),
    };
    let permits = Arc::new(Semaphore::new(ASKED_MAX));
    runtime.block_on(async {
        while let Some(question) = questions.recv().await {
            // The semaphore is never closed.
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let (webhook, holds) = (webhook.clone(), holds.clone());
            tokio::spawn(async move {
                if let Err(why) = ask(&webhook, timeout, &holds, &question).await {
                    let name = &question.key.name;
                    tracing::warn!("[hold] webhook: no verdict on {name}: {why}");
                }
                drop(permit);
            });
        }
    });
}

async fn ask(
    webhook: &HoldWebhook,
    timeout: Duration,
    holds: &Holds,
    question: &Arc<HoldQuestion>,
) -> Result<(), String> {
    if holds.found(Which::Id(question.id)).is_empty() {
        // It was decided while it was queued, or its clients have gone.
        return Ok(());
    }
    let host = match &webhook.address.host {
        Host::Name(name) => name.clone(),
        Host::Ip(ip) => ip.to_string(),
    };
    let server = HttpServer { address: ServerAddress::Tcp(host, webhook.address.port), tls: None };
    let limits = RequestLimits {
        connect: CONNECT_TIMEOUT,
        whole: timeout,
        body_bytes_max: ANSWER_BYTES_MAX,
    };
    let request = Request::post(&*webhook.path)
        .header("host", &*webhook.authority)
        .header("content-type", "application/json")
        .body(Bytes::from(held::asked(question).to_string()))
        .map_err(|error| error.to_string())?;
    let answer = eyelet_client::ask(&server, request, limits).await;
    let answer = answer.map_err(|error| eyelet_client::with_sources(&error))?;
    if !answer.status().is_success() {
        return Err(format!("it answered {}", answer.status()));
    }
    let asked = verdict(answer.body())?;
    if let Err(why) = held::decide(holds, Which::Id(question.id), asked, HeldBy::Webhook) {
        // Mostly people were faster.
        tracing::info!("[hold] webhook: {}: {why}", question.key.name);
    }
    Ok(())
}

fn verdict(body: &[u8]) -> Result<VerdictAsked, String> {
    let answer: Answer = serde_json::from_slice(body).map_err(|error| {
        format!("expected {{\"verdict\": \"allow\"}} or \"refuse\", with \"for_s\": {error}")
    })?;
    let verdict = match answer.verdict {
        AnswerVerdict::Allow => HeldVerdict::Allow,
        AnswerVerdict::Refuse => HeldVerdict::Refuse,
    };
    let keep = match answer.for_s {
        None | Some(0) => KeepAsked::Once,
        Some(seconds) => KeepAsked::lasting(Duration::from_secs(seconds))
            .ok_or("\"for_s\": expected at most 31 days")?,
    };
    Ok(VerdictAsked { verdict, keep })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_a_whole_verdict_is_one() {
        let allow = VerdictAsked { verdict: HeldVerdict::Allow, keep: KeepAsked::Once };
        assert_eq!(verdict(br#"{"verdict":"allow"}"#).unwrap(), allow);
        let hour = KeepAsked::For(Duration::from_secs(3600));
        let refuse = VerdictAsked { verdict: HeldVerdict::Refuse, keep: hour };
        assert_eq!(verdict(br#"{"verdict":"refuse","for_s":3600}"#).unwrap(), refuse);
        for wrong in [
            &b""[..],
            b"allow",
            b"{}",
            br#"{"verdict":"Allow"}"#,
            br#"{"verdict":"allow","for_s":-1}"#,
            br#"{"verdict":"allow","for_s":2678401}"#,
            br#"{"verdict":"allow"}{"verdict":"refuse"}"#,
            br#"{"verdict":"allow","verdict":"refuse"}"#,
            br#"{"verdict":"allow","always":true}"#,
        ] {
            assert!(verdict(wrong).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
