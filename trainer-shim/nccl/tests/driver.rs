//! CUDA drivers that cannot be used, each in a process of its own: which driver
//! there is is found out once for each.

#[path = "support/build.rs"]
mod build;
mod support;

use holdfast_nccl::{Device, DeviceError};
use support::{in_a_process_of_its_own, variable};

/// All functions that are called, with what the first two of them answer.
const FUNCTIONS: &str = r#"
#define FUNCTION(name) int name(void) { return 0; }
int cuInit(unsigned flags) { return flags ? 1 : INIT; }
int cuDeviceGetCount(int *count) { *count = 0; return 0; }
int cuGetErrorString(int code, const char **text) { *text = code == 100 ? "no device is detected" : "?"; return 0; }
int cuGetErrorName(int code, const char **text) { *text = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "?"; return 0; }
FUNCTION(cuDeviceGet) FUNCTION(cuDeviceGetAttribute) FUNCTION(cuDevicePrimaryCtxRetain)
FUNCTION(cuDevicePrimaryCtxRelease_v2) FUNCTION(cuCtxGetCurrent) FUNCTION(cuCtxSetCurrent)
FUNCTION(cuCtxSynchronize) FUNCTION(cuStreamCreate) FUNCTION(cuStreamDestroy_v2)
FUNCTION(cuStreamSynchronize) FUNCTION(cuStreamWaitEvent) FUNCTION(cuEventCreate)
FUNCTION(cuEventDestroy_v2) FUNCTION(cuEventRecord) FUNCTION(cuEventQuery) FUNCTION(cuMemAllocAsync)
FUNCTION(cuMemFreeAsync) FUNCTION(cuMemAlloc_v2) FUNCTION(cuMemFree_v2) FUNCTION(cuMemGetInfo_v2)
FUNCTION(cuMemcpyHtoDAsync_v2) FUNCTION(cuMemcpyDtoHAsync_v2)
"#;

/// Runs a test with a driver of this source, which is found before any other.
fn with_driver(source: &str, test: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, library) = (folder.path().join("driver.c"), folder.path().join("libcuda.so"));
    std::fs::write(&code, source).expect("a source");
    build::library(&code, &library, &["-DINIT=100"]);
    in_a_process_of_its_own(test, &[variable("LD_LIBRARY_PATH", folder.path())]);
}

#[test]
fn a_driver_without_a_function_is_refused_before_it_is_called() {
    with_driver(&FUNCTIONS.replace("FUNCTION(cuEventQuery)", ""), "without_a_function");
}

#[test]
#[ignore = "needs a driver: run by `a_driver_without_a_function_is_refused_before_it_is_called`"]
fn without_a_function() {
    let error = Device::open(0).expect_err("it lacks a function");
    assert_eq!(error, DeviceError::BadDriver { symbol: "cuEventQuery" });
}

#[test]
fn a_driver_that_fails_is_an_error_in_its_words() {
    with_driver(FUNCTIONS, "failing");
}

#[test]
#[ignore = "needs a driver: run by `a_driver_that_fails_is_an_error_in_its_words`"]
fn failing() {
    let error = Device::open(0).expect_err("it fails");
    assert_eq!(error.code(), "cuda_failed");
    let text = "CUDA failed to start: no device is detected (CUDA_ERROR_NO_DEVICE)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    with_driver(&FUNCTIONS.replace("INIT", "0"), "without_devices");
}

#[test]
#[ignore = "needs a driver: run by `a_device_that_is_not_there_is_named`"]
fn without_devices() {
    let error = Device::open(3).expect_err("there is none");
    assert_eq!(error, DeviceError::NoSuchDevice { ordinal: 3, count: 0 });
}
