//! Finds libtowline and generates the bindings from its headers, so that no status, flag or struct is typed twice.
//!
//! 1. `LIBTOWLINE_DIR` (the folder of libtowline.so) and `LIBTOWLINE_INCLUDE` (the folder that has `towline/`), if set.
//!    The latter may be left out in a checkout of Towline: its `include` is used then.
//! 2. Otherwise `pkg-config towline`; set `PKG_CONFIG_PATH` for an installation elsewhere.

use std::env;
use std::path::PathBuf;

use bindgen::callbacks::{EnumVariantValue, ItemInfo, ParseCallbacks};

fn main() {
    let (include, libraries) = locate();
    for folder in &libraries {
        println!("cargo:rustc-link-search=native={}", folder.display());
    }
    println!("cargo:rustc-link-lib=dylib=towline");
    if let Some(folder) = libraries.first() {
        println!("cargo:lib_dir={}", folder.display()); // DEP_TOWLINE_LIB_DIR of dependent packages
    }

    let mut builder = bindgen::Builder::default()
        .header_contents(
            "towline_all.h",
            "#include <towline/towline.h>\n#include <towline/plan.h>\n#include <towline/storage.h>\n#include <towline/directory.h>\n\
             #include <towline/limits.h>\n#include <towline/telemetry.h>\n#include <towline/queue.h>\n\
             #include <towline/pace.h>\n#include <towline/layout.h>\n#include <towline/collectives.h>\n",
        )
        .allowlist_item("(towline|TOWLINE)_.*")
        .newtype_enum("towline_(status|kind|health|progress|op|sync|priority|event_kind|limit|datatype|reduction)_t")
        .no_debug("towline_status_t")
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(true)
        .parse_callbacks(Box::new(Names));
    for folder in &include {
        builder = builder.clang_arg(format!("-I{}", folder.display()));
    }
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    builder
        .generate()
        .unwrap_or_else(|error| {
            panic!("towline-sys: bindgen failed ({error}). It needs libclang (Debian: libclang-dev)")
        })
        .write_to_file(&output)
        .unwrap_or_else(|error| panic!("towline-sys: can't write {}: {error}", output.display()));
}

/// The folders of headers and of libraries.
fn locate() -> (Vec<PathBuf>, Vec<PathBuf>) {
    for name in ["LIBTOWLINE_DIR", "LIBTOWLINE_INCLUDE"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let checkout = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../include");
    let include = env::var_os("LIBTOWLINE_INCLUDE")
        .map(PathBuf::from)
        .or_else(|| checkout.join("towline/towline.h").is_file().then_some(checkout));
    if let (Some(libraries), Some(include)) = (env::var_os("LIBTOWLINE_DIR"), include) {
        println!("cargo:rerun-if-changed={}", include.join("towline").display());
        if !PathBuf::from(&libraries).join("libtowline.so").is_file() || PathBuf::from(&libraries).is_relative() {
            println!(
                "cargo:warning=LIBTOWLINE_DIR is {libraries:?}: give the whole path of the folder of libtowline.so"
            );
        }
        return (vec![include], vec![libraries.into()]);
    }
    match pkg_config::Config::new().cargo_metadata(false).probe("towline") {
        Ok(found) => (found.include_paths, found.link_paths),
        Err(error) => panic!(
            "towline-sys: libtowline was not found. Set LIBTOWLINE_DIR to the folder of libtowline.so and \
             LIBTOWLINE_INCLUDE to the folder that has towline/towline.h, or PKG_CONFIG_PATH to an installation's \
             lib/pkgconfig.\n{error}"
        ),
    }
}

/// Enumerations get Rust's names: `towline_status_t`'s TOWLINE_PEER_LOST is `Status::PEER_LOST`.
#[derive(Debug)]
struct Names;

const PREFIXES: [(&str, &str); 11] = [
    ("towline_status_t", "TOWLINE_"),
    ("towline_kind_t", "TOWLINE_MEMORY_"),
    ("towline_op_t", "TOWLINE_"),
    ("towline_health_t", "TOWLINE_HEALTH_"),
    ("towline_progress_t", "TOWLINE_PROGRESS_"),
    ("towline_sync_t", "TOWLINE_SYNC_"),
    ("towline_priority_t", "TOWLINE_PRIORITY_"),
    ("towline_event_kind_t", "TOWLINE_EVENT_"),
    ("towline_limit_t", "TOWLINE_LIMIT_"),
    ("towline_datatype_t", "TOWLINE_"),
    ("towline_reduction_t", "TOWLINE_REDUCE_"),
];

impl ParseCallbacks for Names {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        PREFIXES.iter().find(|(name, _)| *name == item.name).map(|(name, _)| {
            let stem = name.trim_start_matches("towline_").trim_end_matches("_t");
            stem.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect()
        })
    }

    fn enum_variant_name(&self, owner: Option<&str>, variant: &str, _: EnumVariantValue) -> Option<String> {
        let owner = owner?.trim_start_matches("enum ");
        let (_, prefix) = PREFIXES.iter().find(|(name, _)| *name == owner)?;
        variant.strip_prefix(prefix).map(str::to_owned)
    }
}
