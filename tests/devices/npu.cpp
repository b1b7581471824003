// A PyTorch device of the PrivateUse1 kind, backed by host memory: what dispatch, allocation,
// autograd and device checks see of a real accelerator, on a machine that has none. Every operator
// that is not an allocation, a view or a copy falls back to the CPU's kernel, inside the device.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/extension.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr size_t kAlignment = 64;

// Autograd runs the backward of a device in a thread of its own, hence thread-local and atomic.
thread_local c10::DeviceIndex current = 0;
std::array<std::atomic<int64_t>, kDevices> allocations{};

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    allocations[current]++;
    void* data = nullptr;
    if (bytes > 0) {
      data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
      TORCH_CHECK(data != nullptr, "out of memory: ", bytes, " bytes");
      // Uninitialised memory reads as NaN in every float type.
      std::memset(data, 0xff, bytes);
    }
    return {data, data, &std::free, c10::Device(kDevice, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

HostAllocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device previous(kDevice, current);
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override { return {kDevice, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "no such device: ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
};

at::Device device_or_current(std::optional<at::Device> device) {
  return device.has_value() && device->has_index() ? *device : at::Device(kDevice, current);
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The same bytes as a CPU tensor.
at::Tensor on_host(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  auto* data = static_cast<char*>(x.storage().mutable_data());
  if (data != nullptr) data += x.storage_offset() * x.itemsize();
  return at::from_blob(data, x.sizes(), x.strides(), x.options().device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

// The fallback gives out= arguments their size so.
const at::Tensor& resize(const at::Tensor& x, c10::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  auto* implementation = x.unsafeGetTensorImpl();
  implementation->set_sizes_contiguous(size);
  const size_t bytes = (x.storage_offset() + x.numel()) * x.itemsize();
  if (bytes > x.storage().nbytes()) {
    const c10::DeviceGuard guard(x.device());
    auto data = allocator.allocate(bytes);
    if (x.storage().nbytes() > 0) {
      std::memcpy(data.get(), x.storage().data(), x.storage().nbytes());
    }
    x.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(data));
    x.storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  return x;
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("resize_", resize);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
}

// Products round to half precision under autocast, as on any device that knows autocast.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  module.def("current_device", [] { return static_cast<int>(current); });
  module.def("set_device", [](int device) { current = static_cast<c10::DeviceIndex>(device); });
  module.def("allocations", [](int device) { return allocations.at(device).load(); });
}
