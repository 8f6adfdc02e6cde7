//! A conversation → the prompt's text, by the chat template that comes with the model.
//!
//! What always holds: the template sees what the authors of templates expect of Hugging Face's renderer: `messages`,
//! `add_generation_prompt`, `bos_token`, `eos_token`, `raise_exception`, Python's methods of strings and lists, blocks
//! that swallow their line's end. It sees no clock, so that the same conversation gives the same prompt.

use minijinja::{Environment, ErrorKind, Value, context};
use stageline_core::stage_protocol::{ChatMessage, excerpt};

use crate::failure::Failure;

const NAME: &str = "chat_template";

/// A model's chat template, parsed.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Parses the template.
    pub fn parse(source: String, bos: String, eos: String) -> Result<Self, Failure> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        let parsed = environment.add_template_owned(NAME, source);
        parsed.map_err(|error| {
            Failure::model(format!(
                "the model's chat template cannot be parsed: {error}"
            ))
        })?;
        Ok(Self {
            environment,
            bos,
            eos,
        })
    }

    /// Lays out a conversation, up to where the model is to answer.
    pub fn render(&self, messages: &[ChatMessage]) -> Result<String, Failure> {
        let template = self.environment.get_template(NAME).map_err(refused)?;
        let values = context! {
            messages,
            add_generation_prompt => true,
            bos_token => self.bos,
            eos_token => self.eos,
            tools => Value::from(()),
        };
        template.render(values).map_err(refused)
    }
}

/// What the template itself said, if it refused; never the conversation.
fn refused(error: minijinja::Error) -> Failure {
    let reason = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    let reason = excerpt(reason.as_bytes(), 300);
    Failure::request(format!(
        "the model's chat template does not take this conversation: {reason}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, String> {
        let own = |text: &str| text.to_owned();
        let template = ChatTemplate::parse(own(source), own("<s>"), own("</s>")).expect("parses");
        let messages: Vec<_> = messages
            .iter()
            .map(|(role, content)| ChatMessage {
                role: own(role),
                content: own(content),
            })
            .collect();
        template
            .render(&messages)
            .map_err(|failure| failure.message)
    }

    #[test]
    fn templates_are_rendered_as_their_authors_expect() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m['role'] == 'user' %}\n[INST] {{ m.content.strip() \
                      }} [/INST]\n  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}>{% endif %}";
        assert_eq!(
            render(source, &[("user", " a ")]).expect("renders"),
            "<s>\n[INST] a [/INST]\n>"
        );
    }

    #[test]
    fn a_template_can_refuse() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% endif %}ok";
        assert_eq!(render(source, &[("user", "x")]).expect("renders"), "ok");
        let refused = render(source, &[("system", "my secret")]).expect_err("refuses");
        assert_eq!(
            refused,
            "the model's chat template does not take this conversation: begin with the user"
        );
    }

    #[test]
    fn a_broken_template_is_named() {
        let error = ChatTemplate::parse("{% for %}".into(), String::new(), String::new());
        let message = error.err().expect("broken").message;
        assert!(
            message.starts_with("the model's chat template cannot be parsed: "),
            "{message}"
        );
    }
}
