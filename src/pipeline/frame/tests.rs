//! What goes in comes out, however it is cut; what is not a frame is named and costs nothing.

use super::*;

const TAG: Tag = Tag {
    epoch: u64::MAX - 3,
    id: 42,
};

fn frames() -> Vec<Frame> {
    let span = Span {
        position: 512,
        len: 3,
        dtype: Dtype::F32,
    };
    let sampling = Sampling {
        stop: vec!["\u{1F600}".into(), "\"\n".into()],
        ..Sampling::default()
    };
    vec![
        Frame::Begin {
            tag: TAG,
            remaining_ms: 60_000,
            sampling,
        },
        Frame::Fragment {
            tag: TAG,
            remaining_ms: 1,
            span,
            more: true,
            total: 24,
            offset: 4,
            payload: Bytes::from_static(&[1; 20]),
        },
        Frame::Fragment {
            tag: TAG,
            remaining_ms: 1,
            span: Span {
                dtype: Dtype::Bf16,
                ..span
            },
            more: false,
            total: FRAGMENT_MAX as u32,
            offset: 0,
            payload: Bytes::from(vec![7; FRAGMENT_MAX]),
        },
        Frame::Step {
            tag: TAG,
            remaining_ms: 0,
            span: Span { len: 1, ..span },
            payload: Bytes::from_static(b"hidden"),
        },
        Frame::Token {
            tag: TAG,
            token: 49_151,
            finish: None,
            text: " the".into(),
        },
        Frame::Token {
            tag: TAG,
            token: 0,
            finish: Some(Finish::Stop),
            text: String::new(),
        },
        Frame::Token {
            tag: TAG,
            token: 0,
            finish: Some(Finish::Length),
            text: "\u{1F600}".into(),
        },
        Frame::End { tag: TAG },
        Frame::Error {
            tag: TAG,
            error: failure(InferCode::StageDown, "stage.llama[1]: gone"),
        },
        Frame::Ack { tag: TAG },
        Frame::Ping,
    ]
}

fn bytes_of(frames: &[Frame]) -> BytesMut {
    let mut bytes = BytesMut::new();
    frames
        .iter()
        .for_each(|frame| frame.encode_into(&mut bytes));
    bytes
}

fn read(bytes: &[u8], step: usize) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for piece in bytes.chunks(step) {
        decoder.push(piece);
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

#[test]
fn every_kind_is_read_back_however_it_is_cut() {
    let frames = frames();
    let bytes = bytes_of(&frames);
    for step in [1, 3, 39, 44, 4096, bytes.len()] {
        assert_eq!(read(&bytes, step).as_ref(), Ok(&frames), "pieces of {step}");
    }
}

#[test]
fn a_frame_that_is_cut_short_yields_nothing() {
    for frame in frames() {
        let bytes = bytes_of(std::slice::from_ref(&frame));
        for end in (0..bytes.len().min(200)).chain([bytes.len() - 1]) {
            assert_eq!(read(&bytes[..end], 64), Ok(vec![]), "{frame:?} at {end}");
        }
    }
}

/// Whatever one byte is changed to, the decoder answers with a frame, an error or nothing, and never with a panic.
#[test]
fn no_changed_byte_makes_it_panic() {
    for frame in frames() {
        let bytes = bytes_of(std::slice::from_ref(&frame));
        for at in 0..bytes.len().min(44 + 64) {
            for value in 0..=255 {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                drop(read(&bytes, bytes.len()));
            }
        }
    }
}

fn header_of(frame: &Frame) -> BytesMut {
    bytes_of(std::slice::from_ref(frame))
}

/// Offsets count from the begin of the length.
#[track_caller]
fn refused(frame: &Frame, at: usize, value: &[u8], part: &str) {
    let mut bytes = header_of(frame);
    bytes[at..at + value.len()].copy_from_slice(value);
    let error = read(&bytes, bytes.len()).expect_err(part).to_string();
    assert!(error.contains(part), "{error}");
}

#[test]
fn impossible_fields_are_refused() {
    let frames = frames();
    let (fragment, step, end) = (&frames[1], &frames[3], &frames[7]);
    refused(end, 0, &[0, 0, 0, 39], "39 bytes was announced");
    refused(end, 0, &[0xff; 4], "4294967295 bytes was announced");
    refused(end, 0, &[0, 0, 0, 41], "41 bytes was announced");
    refused(fragment, 0, &[0, 1, 0, 41], "65577 bytes was announced");
    refused(step, 0, &[0, 16, 0, 41], "1048617 bytes was announced");
    refused(end, 4, &[0], "kind: 0");
    refused(end, 4, &[9], "kind: 9");
    refused(end, 5, &[1], "flag: 1");
    refused(fragment, 5, &[MORE], "flag: 2");
    refused(&frames[4], 5, &[BY_LENGTH], "flag: 8");
    refused(step, 6, &[0], "dtype: 0");
    refused(step, 6, &[3], "dtype: 3");
    refused(end, 7, &[1], "reserved byte: 1");
    refused(step, 24, &[0xff; 4], "length: 1");
    refused(step, 28, &[0; 4], "length: 0");
    refused(fragment, 36, &[0, 0, 0, 23], "offset: 4");
    refused(fragment, 36, &[0xff; 4], "total: 4294967295");
    refused(fragment, 40, &[0xff; 4], "offset: 4294967295");
    refused(&frames[0], 44, b"[", "cannot be read");
    refused(&frames[4], 44, &[0xff], "cannot be read");
}

#[test]
fn a_length_is_refused_before_anything_is_held_for_it() {
    let mut decoder = Decoder::default();
    decoder.push(&[0xff, 0xff, 0xff, 0xff]);
    assert!(decoder.next().is_err());
    decoder.push(&[0; 1024]);
    assert_eq!(decoder.held(), 0);
    assert!(
        decoder.next().is_err(),
        "the place of the next frame is lost"
    );

    let mut decoder = Decoder::default();
    decoder.push(&[0, 16, 0, 40, END]);
    assert!(decoder.next().is_err(), "an end has no payload of a MiB");
}

#[test]
fn texts_are_cut_and_cleaned_so_that_they_can_be_read() {
    let error = failure(
        InferCode::Internal,
        "\u{1b}[31m".to_owned() + &"x\u{0}".repeat(40_000),
    );
    let frames = [
        Frame::Error { tag: TAG, error },
        Frame::Token {
            tag: TAG,
            token: 1,
            finish: None,
            text: "\u{1F600}".repeat(40_000),
        },
    ];
    let back = read(&bytes_of(&frames), 4096).expect("cut to its limit");
    assert_eq!(back.len(), 2);
    let Frame::Error { error, .. } = &back[0] else {
        panic!("an error comes first, not {:?}", back[0]);
    };
    assert!(error.message.starts_with("\u{fffd}[31mx"));
    assert!(!error.message.contains('\u{1b}'));
}
