//! Devices, streams and memory of CUDA: what collectives work on.
//!
//! All of it is `cudarc`'s, after a check that there is a driver and that it has
//! the functions called here: without them `cudarc` panics.
#![expect(unsafe_code, reason = "cudarc's look for the driver is unsafe")]

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr as _, DriverError, result, sys,
};

use crate::error::DeviceError;

/// All functions of the driver that are reached from here.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
];

/// Whether the driver is there, once for the process.
fn driver() -> Result<(), DeviceError> {
    static FOUND: OnceLock<Result<(), DeviceError>> = OnceLock::new();
    FOUND.get_or_init(look_for_driver).clone()
}

fn look_for_driver() -> Result<(), DeviceError> {
    // SAFETY: this loads the driver, whose initialisers have no conditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver);
    }
    // SAFETY: this loads what the line above has found; it panics without it only.
    let library = unsafe { sys::culib() };
    for function in FUNCTIONS.iter().copied() {
        // SAFETY: the address is not called and not read.
        if unsafe { library.get::<*const c_void>(function) }.is_err() {
            return Err(DeviceError::BadDriver { symbol: function });
        }
    }
    Ok(())
}

fn failed(doing: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |error| {
        let text = |found: Result<&std::ffi::CStr, DriverError>| {
            found.map_or_else(|_| "unknown".into(), |text| text.to_string_lossy().into_owned())
        };
        let text = format!("{} ({})", text(error.error_string()), text(error.error_name()));
        DeviceError::Cuda { doing, text }
    }
}

/// One GPU, with its primary context, as PyTorch and NCCL use it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Device {
    context: Arc<CudaContext>,
}

impl Device {
    /// How many this process sees.
    pub fn count() -> Result<u32, DeviceError> {
        driver()?;
        result::init().map_err(failed("to start"))?;
        let count = result::device::get_count().map_err(failed("to count the devices"))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device of this number, and makes it that of the calling thread.
    pub fn open(ordinal: u32) -> Result<Device, DeviceError> {
        let count = Device::count()?;
        if ordinal >= count {
            return Err(DeviceError::NoSuchDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal as usize).map_err(failed("to open a device"))?;
        Ok(Device { context })
    }

    /// Makes it the device of the calling thread: the one that NCCL takes.
    pub fn make_current(&self) -> Result<(), DeviceError> {
        self.context.bind_to_thread().map_err(failed("to choose a device"))
    }

    /// Number of the device, from 0.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Free bytes, of all its users together.
    pub fn free_bytes(&self) -> Result<usize, DeviceError> {
        let (free, _) = self.context.mem_get_info().map_err(failed("to read the free memory"))?;
        Ok(free)
    }

    /// Makes a new stream.
    pub fn stream(&self) -> Result<Stream, DeviceError> {
        let stream = self.context.new_stream().map_err(failed("to make a stream"))?;
        Ok(Stream { stream })
    }
}

/// Work of a device that is done in order. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Stream {
    stream: Arc<CudaStream>,
}

impl Stream {
    /// Copies values into new memory of the device. Waits for everything that
    /// was put on the stream before: not while a collective on it may hang.
    pub fn buffer<T: Element>(&self, values: &[T]) -> Result<Buffer<T>, DeviceError> {
        let memory = self.stream.clone_htod(values).map_err(failed("to copy to the device"))?;
        // cudarc keeps what went wrong while the copy was waited for.
        self.stream.context().check_err().map_err(failed("to copy to the device"))?;
        Ok(Buffer { memory: Arc::new(memory) })
    }
}

/// Values in the memory of a device, bound to a stream: all work on them is done
/// in its order. Cheap to clone: the memory is freed, in that order, with its
/// last user, a collective included.
#[derive(Debug)]
pub struct Buffer<T: Element> {
    memory: Arc<CudaSlice<T>>,
}

impl<T: Element> Clone for Buffer<T> {
    fn clone(&self) -> Buffer<T> {
        Buffer { memory: Arc::clone(&self.memory) }
    }
}

impl<T: Element> Buffer<T> {
    /// Its values. Waits for everything that was put on the stream before: not
    /// while a collective on it may hang, see
    /// [`Communicator::pending`](crate::communicator::Communicator::pending).
    pub fn values(&self) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::ZERO; self.memory.len()];
        let stream = self.memory.stream();
        stream.memcpy_dtoh(self.memory.as_ref(), &mut values).map_err(failed("to copy back"))?;
        stream.synchronize().map_err(failed("to copy back"))?;
        self.memory.context().check_err().map_err(failed("to copy back"))?;
        Ok(values)
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Its address and stream. The address is valid while a clone of the buffer exists.
    pub(crate) fn place(&self) -> Place {
        let stream = Arc::clone(self.memory.stream());
        let (address, _order) = self.memory.device_ptr(&stream);
        Place { address, stream: Arc::clone(self.memory.stream()) }
    }

    pub(crate) fn hold(&self) -> Arc<dyn std::any::Any + Send + Sync> {
        Arc::clone(&self.memory) as Arc<dyn std::any::Any + Send + Sync>
    }
}

/// Where a collective works.
pub(crate) struct Place {
    pub address: sys::CUdeviceptr,
    pub stream: Arc<CudaStream>,
}

/// Memory of a collective, until it has ended on the device.
pub(crate) struct InFlight {
    /// Keeps the buffer's memory allocated until the collective has ended.
    _memory: Arc<dyn std::any::Any + Send + Sync>,
    stream: Arc<CudaStream>,
    /// The end of the collective; `None` before it is known to be on the stream.
    end: Option<cudarc::driver::CudaEvent>,
}

impl InFlight {
    pub(crate) fn new<T: Element>(buffer: &Buffer<T>) -> InFlight {
        InFlight { _memory: buffer.hold(), stream: Arc::clone(buffer.memory.stream()), end: None }
    }

    /// Whether it has ended. To be asked only while NCCL has nothing left to put
    /// on the stream.
    pub(crate) fn has_ended(&mut self) -> Result<bool, DeviceError> {
        let end = match self.end.take() {
            Some(end) => end,
            None => self.stream.record_event(None).map_err(failed("to mark the stream"))?,
        };
        self.stream.context().bind_to_thread().map_err(failed("to choose a device"))?;
        let ended = end.try_is_complete().map_err(failed("in a collective"))?;
        self.end = Some(end);
        Ok(ended)
    }
}

/// Types of values: the same bits in NCCL, on the device and here.
pub trait Element: sealed::Element {}

impl<T: sealed::Element> Element for T {}

mod sealed {
    use cudarc::driver::DeviceRepr;

    pub trait Element: DeviceRepr + Copy + Send + Sync + 'static {
        /// The type's number in NCCL's `ncclDataType_t`.
        const DATA_TYPE: i32;
        const ZERO: Self;
    }

    macro_rules! elements {
        ($($name:ty = $code:literal, $zero:literal;)*) => {
            $(impl Element for $name {
                const DATA_TYPE: i32 = $code;
                const ZERO: $name = $zero;
            })*
        };
    }

    elements! {
        u8 = 1, 0;
        i32 = 2, 0;
        i64 = 4, 0;
        f32 = 7, 0.0;
        f64 = 8, 0.0;
    }
}
