//! Which machines meet which terms, and that a term has one text.

use super::*;
use crate::offer::Gpu;

fn requirement(text: &str) -> Requirement {
    Requirement::parse(text).unwrap_or_else(|errors| panic!("{text}: {errors:?}"))
}

fn machine() -> Facts {
    let gpu = Gpu {
        model: "NVIDIA GeForce RTX 4090".to_owned(),
        vram: Bytes::mib(24_564),
    };
    Facts {
        os: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 16,
        memory: Bytes::mib(31_900),
        disk: Bytes::gib(60),
        gpus: vec![gpu.clone(), gpu],
        driver: Some("550.54.14".to_owned()),
        cuda: Some("12.4".to_owned()),
        region: Some("EU-RO-1".to_owned()),
        datacenter: None,
        host: None,
        tools: vec!["curl".to_owned(), "git".to_owned()],
        spot: false,
        extra: [
            ("reliability", "0.985"),
            ("verified", "true"),
            ("host", "A-17"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
    }
}

fn check(facts: &Facts, fitting: &[&str], unfit: &[&str]) {
    for text in fitting {
        assert_eq!(requirement(text).misfits(facts), [], "{text}");
    }
    for text in unfit {
        assert_eq!(requirement(text).misfits(facts).len(), 1, "{text}");
    }
}

const FITTING: &[&str] = &[
    "",
    "gpu=rtx_4090",
    "gpu=RTX 4090",
    "gpu=rtx-40*",
    "gpu=h100|rtx4090",
    "gpu=any",
    "gpu",
    "gpu!=h100",
    "!gpu=h100",
    "gpus>=2",
    "gpus=2",
    "!gpus>2",
    "vram>=24",
    "vram=24",
    "vram<25",
    "!vram>24",
    "cpus>8",
    "memory>=32",
    "disk>=60",
    "disk<=60",
    "arch=x86_64",
    "arch=amd64|arm64",
    "os=linux",
    "os!=macos",
    "region=EU",
    "region=RO",
    "region=romania|US",
    "region=eu-ro-1",
    "region=eu-*",
    "region!=US",
    "cuda>=12.1",
    "cuda=12",
    "cuda>12",
    "cuda<=12.4",
    "driver>=550",
    "driver=550.54",
    "driver<551",
    "driver!=551",
    "tools=git",
    "tools=git+curl",
    "tools=zz|git",
    "tools!=zz",
    "!spot",
    "spot=false",
    "provider.reliability>=0.98",
    "reliability>0.9",
    "provider.verified=true",
    "provider.host=a-*",
    "!provider.host=b*",
    "gpu = rtx_4090 , vram >= 24",
];

const UNFIT: &[&str] = &[
    "gpu=rtx_4080",
    "gpu=rtx_4090_d",
    "gpu!=rtx_4090",
    "!gpu",
    "gpu!=any",
    "gpus>2",
    "vram>24",
    "vram>=25",
    "!vram>=24",
    "cpus<16",
    "memory>=34",
    "disk>60",
    "disk>=61",
    "arch=arm64",
    "os=windows",
    "region=US",
    "region=DE|FR",
    "region!=EU",
    "cuda>=12.5",
    "cuda=11",
    "cuda<=12",
    "driver>=550.54.15",
    "driver!=550",
    "tools=git+zz",
    "tools!=git",
    "spot",
    "provider.reliability>=0.99",
    "provider.nothing=1",
    "provider.nothing!=1",
    "provider.verified=false",
];

#[test]
fn a_machine_with_gpus() {
    check(&machine(), FITTING, UNFIT);
}

#[test]
fn what_is_not_known_meets_no_term() {
    let bare = Facts::default();
    let unfit = [
        "cuda>=1",
        "cuda<99",
        "cuda!=1",
        "driver!=1",
        "region!=US",
        "region=US",
        "vram>=1",
        "vram<1",
        "gpu=any",
        "provider.x=1",
        "os=linux",
        "arch!=arm64",
    ];
    check(
        &bare,
        &["gpu!=h100", "!gpu", "gpus=0", "tools!=git", "!spot"],
        &unfit,
    );
    let found = requirement("cuda>=12").misfits(&bare);
    assert_eq!(
        (found[0].term.as_str(), found[0].found.as_str()),
        ("cuda>=12", "unknown")
    );
}

#[test]
fn sizes_are_compared_as_they_are_sold() {
    let with = |mib| Facts {
        gpus: vec![Gpu {
            model: "NVIDIA L4".to_owned(),
            vram: Bytes::mib(mib),
        }],
        ..Facts::default()
    };
    // L4, L40S, T4, H100 as their drivers say.
    for (mib, sold) in [(23_034, 24), (46_068, 48), (15_360, 16), (81_559, 80)] {
        check(
            &with(mib),
            &[&format!("vram>={sold}")],
            &[&format!("vram<{sold}")],
        );
    }
    check(&with(22 * 1024), &["vram<24"], &["vram>=24"]);
    check(&with(24_564), &["vram<25", "vram>=23.5"], &["vram>=25"]);
    check(&with(400 << 10), &["vram=400"], &["vram>400"]);
    for (mib, sold) in [
        (7_780, 8),
        (15_800, 16),
        (31_900, 32),
        (64_100, 64),
        (128_600, 128),
        (515_000, 512),
    ] {
        let facts = Facts {
            memory: Bytes::mib(mib),
            ..Facts::default()
        };
        check(
            &facts,
            &[&format!("memory>={sold}")],
            &[&format!("memory>={}", sold + sold / 4)],
        );
    }
}

#[test]
fn models_are_matched_without_vendor_size_and_form() {
    let with = |model: &str| Facts {
        gpus: vec![Gpu {
            model: model.to_owned(),
            vram: Bytes::gib(80),
        }],
        ..Facts::default()
    };
    check(
        &with("NVIDIA H100 80GB HBM3"),
        &[
            "gpu=h100",
            "gpu=h100_sxm",
            "gpu=H100*",
            "gpu=h100_80gb_hbm3",
        ],
        &["gpu=h10", "gpu=h200"],
    );
    check(
        &with("NVIDIA A100-SXM4-80GB"),
        &["gpu=a100", "gpu=a100_sxm", "gpu=a100_sxm4_80gb"],
        &["gpu=a1000", "gpu=a100_pcie"],
    );
    check(
        &with("NVIDIA RTX 6000 Ada Generation"),
        &["gpu=rtx_6000_ada"],
        &["gpu=rtx_6000"],
    );
    check(
        &with("RTX 4060 Ti"),
        &["gpu=rtx_4060_ti"],
        &["gpu=rtx_4060"],
    );
}

#[test]
fn canonical_text_is_one_for_one_meaning_and_reads_to_the_same() {
    for (text, canonical) in [
        ("", ""),
        (
            " vram >= 24 , gpu = RTX 4090|h100 , vram>=24",
            "gpu=h100|rtx4090, vram>=24",
        ),
        ("!gpus>=2", "gpus<2"),
        ("spot=true", "spot"),
        ("spot!=true", "!spot"),
        ("!spot", "!spot"),
        ("gpu", "gpu=any"),
        ("!gpu", "gpu!=any"),
        ("gpu=any|h100", "gpu=any"),
        ("memory>=512MiB, disk>=1.5", "memory>=512MiB, disk>=1536MiB"),
        ("memory>=0.3", "memory>=314572KiB"),
        (
            "region=europe|germany|us-east-1|saudi-arabia",
            "region=EU|DE|Saudi Arabia|us-east-1",
        ),
        ("arch=AMD64", "arch=x86_64"),
        ("tools=b+a|c", "tools=a+b|c"),
        ("reliability>=0.98", "provider.reliability>=0.98"),
        ("cuda>=12.04", "cuda>=12.4"),
    ] {
        let read = requirement(text);
        assert_eq!(read.to_string(), canonical);
        assert_eq!(requirement(canonical), read, "{canonical}");
        let json = serde_json::to_string(&read).expect("text");
        assert_eq!(
            serde_json::from_str::<Requirement>(&json).expect("the same"),
            read
        );
    }
}

#[test]
fn both_must_hold_and_nothing_is_said_twice() {
    let both = requirement("vram>=24, gpu=h100").and(&requirement("gpu=h100, !spot"));
    assert_eq!(both.to_string(), "gpu=h100, vram>=24, !spot");
    assert_eq!(Requirement::default().and(&both), both);
    assert!(Requirement::default().is_any() && !both.is_any());
}

#[test]
fn every_fault_is_found_where_it_stands() {
    for (text, faulty) in [
        ("vran>=24", "vran"),
        ("cpus>=4, vram>=lots", "lots"),
        ("gpus>=-1", "-1"),
        ("vram", "vram"),
        ("vram>=", ""),
        ("gpu>h100", "h100"),
        ("vram>=24|48", "24|48"),
        ("vram==24", "==24"),
        ("provider.>=1", "provider."),
        ("provider.x>=much", "much"),
        ("spot=maybe", "maybe"),
        ("cuda>=12.x", "12.x"),
        ("tools=a++b", "a++b"),
        ("gpu=|h100", ""),
        ("gpu!==h100", "=h100"),
        (">=24", ""),
        ("gpu ~ h100", "gpu ~ h100"),
    ] {
        let errors = Requirement::parse(text).expect_err(text);
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        assert_eq!(&text[errors[0].span.clone()], faulty, "{text}: {errors:?}");
    }
    assert_eq!(
        Requirement::parse("a=1, b=2, , c").expect_err("four").len(),
        4
    );
    assert!(Requirement::parse(&"vram>=1,".repeat(1000)).is_err());
}

#[test]
fn regions_of_providers_say_country_and_continent() {
    for (code, fitting, unfit) in [
        (
            "us-east-1",
            vec!["US", "NA", "usa", "united states"],
            vec!["EU", "CA"],
        ),
        ("europe-west4", vec!["EU", "europe"], vec!["US"]),
        ("EUR-IS-1", vec!["EU", "IS", "Iceland"], vec!["DE"]),
        ("AP-AU-1", vec!["OC", "AU"], vec!["AS"]),
        ("Quebec, CA", vec!["CA", "NA", "Canada"], vec!["US"]),
        ("California, USA", vec!["US"], vec!["CA"]),
        ("Riyadh, SA", vec!["AS", "saudi-arabia"], vec!["SA"]),
        ("sa-east-1", vec!["SA"], vec!["AS"]),
        ("asia-northeast-1", vec!["AS"], vec!["JP"]),
        ("australia-east-1", vec!["AU", "OC"], vec!["AS"]),
        ("DE", vec!["DE", "EU"], vec!["FR"]),
        ("nbg1", vec!["nbg1", "nbg?"], vec!["EU", "DE"]),
        ("é", vec!["é"], vec!["EU"]),
    ] {
        let facts = Facts {
            region: Some(code.to_owned()),
            ..Facts::default()
        };
        for place in fitting {
            assert_eq!(
                requirement(&format!("region={place}")).misfits(&facts),
                [],
                "{code} is in {place}"
            );
        }
        for place in unfit {
            assert_eq!(
                requirement(&format!("region={place}"))
                    .misfits(&facts)
                    .len(),
                1,
                "{code} is not in {place}"
            );
        }
    }
}

#[test]
fn a_term_and_its_negation_never_agree_on_known_facts() {
    let facts = machine();
    for text in [
        "gpu=rtx_4090",
        "gpu=h100",
        "gpus>=2",
        "gpus>3",
        "cpus<=16",
        "memory>=32",
        "memory<8",
        "disk=60",
        "arch=x86_64",
        "os=macos",
        "region=EU",
        "cuda>12.4",
        "driver=550",
        "tools=git",
        "spot",
        "reliability>=0.985",
    ] {
        let holds = |text: &str| requirement(text).misfits(&facts).is_empty();
        assert_ne!(holds(text), holds(&format!("!{text}")), "{text}");
    }
}

#[test]
fn any_text_reads_to_terms_or_to_faults_inside_it() {
    let texts = [
        "gpu=rtx_4090|é*, vram>=24, !spot, provider.x!=1.5",
        "!tools=a+b , cuda<=12.4, region=ü|US",
    ];
    for text in texts {
        for (at, _) in text.char_indices() {
            for odd in ["", ",", "|", "!=", "é", "\0", "+"] {
                let changed = format!(
                    "{}{odd}{}",
                    &text[..at],
                    &text[at..].chars().skip(1).collect::<String>()
                );
                match Requirement::parse(&changed) {
                    Ok(read) => {
                        assert_eq!(requirement(&read.to_string()), read, "{changed}");
                        read.misfits(&machine());
                    }
                    Err(errors) => {
                        let inside = errors
                            .iter()
                            .all(|error| changed.get(error.span.clone()).is_some());
                        assert!(inside && !errors.is_empty(), "{changed}: {errors:?}");
                    }
                }
            }
        }
    }
}
