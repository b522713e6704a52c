// Stands in for NVIDIA's driver library, libcuda.so.1, where there is no GPU: the functions that
// moving device memory between processes needs, under their real names and signatures. Built as a
// library that is opened at run time, as the real one.
//
// Device memory is an anonymous file. Its public address is mapped without any access, so that code
// which touches device memory with the CPU ends at once; copies go through another mapping. Streams
// are threads: a copy is made later than it was asked for. Handles for other processes name the
// file (by process and descriptor), or are the file's descriptor. As on real GPUs, a process cannot
// open its own handles, an address is copied only by a context that has access to it, and freeing
// or closing memory waits for the streams.
//
// What it is to be like is told by RW_STAND_IN_CUDA when cuInit is called, and by
// stand_in_cuda_configure(), as a comma list:
//
//   gpus=N              GPUs of the machine (2); CUDA_VISIBLE_DEVICES picks and orders them
//   delay_us=N          every copy takes so long
//   lose=KIND           copies of that kind report success and move nothing: dtod, htod, dtoh
//   fail=N              the N-th copy from now ends in an error, and its stream with it
//   refuse=NAME:CODE    that function returns that code
//   no_peer             no GPU reaches another's memory
//   no_marks            streams cannot write 64-bit values
//   lazy                kernels are loaded at their first launch
//   touchable           threads of the process reach what is allocated from now on at its public
//                       address: those that stand in for a kernel's
//   attribute=ID:VALUE  of each device
//   ipc_uncounted       who opens a handle again is given its address and not counted, as by older
//                       drivers: the first to close takes the memory from the others
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "stand_in.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Result = int;
constexpr Result kOk = 0;
constexpr Result kInvalidValue = 1;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kInvalidDevice = 101;
constexpr Result kInvalidContext = 201;
constexpr Result kAlreadyRegistered = 712;
constexpr Result kNotRegistered = 713;
constexpr Result kPeerUnsupported = 217;
constexpr Result kInvalidHandle = 400;
constexpr Result kNotReady = 600;
constexpr Result kIllegalAddress = 700;
constexpr Result kPeerAlreadyEnabled = 704;
constexpr Result kNotPermitted = 800;
constexpr Result kNotSupported = 801;

using Pointer = std::uint64_t;
using Allocation = unsigned long long;

struct Location {
  int type;
  int id;
};
struct Properties {
  int type;
  int handle_types;
  Location location;
  void* windows_only;
  unsigned char flags[8];
};
struct Access {
  Location location;
  int flags;
};
struct IpcHandle {
  char bytes[64];
};
// What an IPC handle holds.
struct FileName {
  std::uint64_t magic;
  int pid;
  int descriptor;
  std::uint64_t bytes;
  std::uint64_t number;  // descriptors are used again
  int gpu;
};
constexpr std::uint64_t kMagic = 0x5354414e44494e31;
constexpr std::size_t kGranularity = 2 << 20;
constexpr std::size_t kPage = 4096;
// Stored behind the memory in its file, for whoever opens that.
struct Label {
  std::uint64_t magic;
  int gpu;
  int handle_types;
};

struct Stream;
struct Context {
  int ordinal = 0;
  int gpu = 0;  // of the machine
  std::set<int> peers;
  Stream* legacy = nullptr;  // the stream NULL, once used
  int retained = 0;
};

struct Faults {
  long delay_us = 0;
  std::set<std::string> lose;
  std::map<std::string, Result> refuse;
  long fail = 0;
  bool no_peer = false;
  bool no_marks = false;
  bool lazy = false;
  bool touchable = false;
  std::map<int, int> attributes;
  bool ipc_uncounted = false;
};

// A mapped range of device memory.
struct Range {
  Pointer base = 0;
  std::size_t bytes = 0;
  std::byte* alias = nullptr;  // where it can be touched
  int descriptor = -1;
  int gpu = 0;
  Context* context = nullptr;  // of ordinary memory
  std::set<int> access;        // ordinals, of virtual memory
  Allocation allocation = 0;   // of virtual memory
  std::string ipc_name;        // opened by a handle
  int opened = 0;              // this number of times
  std::uint64_t number = 0;    // no other allocation has had it
};

struct Physical {
  int descriptor = -1;
  std::size_t bytes = 0;
  int gpu = 0;
  int handle_types = 0;
  int references = 0;
};

struct Stream {
  explicit Stream(Context* owner) : context(owner), thread([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    thread.join();
  }
  void add(std::function<Result()> work) {
    {
      const std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }
  Result query() {
    const std::lock_guard lock(mutex);
    if (error != kOk) return error;
    return queue.empty() && !busy ? kOk : kNotReady;
  }
  void drain() {
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return queue.empty() && !busy; });
  }
  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !queue.empty(); });
      if (queue.empty()) return;
      const std::function<Result()> work = std::move(queue.front());
      queue.pop_front();
      if (error == kOk) {
        busy = true;
        lock.unlock();
        const Result result = work();
        lock.lock();
        busy = false;
        if (result != kOk) error = result;
      }
      if (queue.empty()) idle.notify_all();
    }
  }
  Context* context;
  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable idle;
  std::deque<std::function<Result()>> queue;
  bool busy = false;
  bool ending = false;
  Result error = kOk;
  std::thread thread;  // last: it uses the others
};

struct Event {
  std::atomic<int> under_way = 0;
  std::atomic<Stream*> stream = nullptr;
};

std::atomic<int> events{0};

struct State {
  std::mutex mutex;
  bool initialized = false;
  Faults faults;
  std::vector<std::unique_ptr<Context>> contexts;
  std::map<Pointer, Range> ranges;
  std::map<Pointer, std::size_t> reserved;
  std::map<Allocation, Physical> allocations;
  Allocation last_allocation = 0;
  std::uint64_t last_number = 0;
  std::map<Pointer, std::size_t> pinned;
  std::map<Stream*, std::shared_ptr<Stream>> streams;
};

// Never destroyed: streams' threads may outlive main.
State*& the_state() {
  static State* made = new State;
  return made;
}
State& state() { return *the_state(); }

std::atomic<int>& launches() {
  static std::atomic<int> made{0};
  return made;
}

thread_local std::vector<Context*> current;

Context* current_context() { return current.empty() ? nullptr : current.back(); }

// NULL is the context's legacy stream; here it waits for no other.
Stream* stream_of(Stream* given) {
  Context* context = current_context();
  if (given != nullptr || context == nullptr) return given;
  if (context->legacy == nullptr) {
    const auto made = std::make_shared<Stream>(context);
    state().streams[made.get()] = made;
    context->legacy = made.get();
  }
  return context->legacy;
}

void configure(const std::string& text) {
  State& s = state();
  int gpus = s.contexts.empty() ? 2 : static_cast<int>(s.contexts.size());
  Faults faults;
  stand_in::for_each_entry(text, [&](const std::string& name, const std::string& value) {
    if (name == "gpus")
      gpus = std::stoi(value);
    else if (name == "delay_us")
      faults.delay_us = std::stol(value);
    else if (name == "lose")
      faults.lose.insert(value);
    else if (name == "fail")
      faults.fail = std::stol(value);
    else if (name == "no_peer")
      faults.no_peer = true;
    else if (name == "no_marks")
      faults.no_marks = true;
    else if (name == "lazy")
      faults.lazy = true;
    else if (name == "touchable")
      faults.touchable = true;
    else if (name == "attribute")
      faults.attributes[std::stoi(value.substr(0, value.find(':')))] =
          std::stoi(value.substr(value.find(':') + 1));
    else if (name == "ipc_uncounted")
      faults.ipc_uncounted = true;
    else if (name == "refuse")
      faults.refuse[value.substr(0, value.find(':'))] =
          std::stoi(value.substr(value.find(':') + 1));
    else
      abort();
  });
  s.faults = faults;
  if (!s.contexts.empty()) return;
  std::vector<int> visible;
  if (const char* chosen = getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream numbers(chosen);
    for (std::string number; std::getline(numbers, number, ',');) {
      if (std::stoi(number) < gpus) visible.push_back(std::stoi(number));
    }
  } else {
    for (int gpu = 0; gpu < gpus; ++gpu) visible.push_back(gpu);
  }
  for (std::size_t i = 0; i < visible.size(); ++i) {
    s.contexts.push_back(std::make_unique<Context>());
    s.contexts.back()->ordinal = static_cast<int>(i);
    s.contexts.back()->gpu = visible[i];
  }
}

// Every function begins with it: `name` may be one that refuses.
std::unique_lock<std::mutex> enter(const char* name, Result& result) {
  State& s = state();
  std::unique_lock lock(s.mutex);
  const auto refused = s.faults.refuse.find(name);
  result = refused != s.faults.refuse.end() ? refused->second
           : s.initialized                  ? kOk
                                            : kNotInitialized;
  return lock;
}
#define ENTER(name)                                        \
  Result refused = kOk;                                    \
  [[maybe_unused]] const auto lock = enter(name, refused); \
  if (refused != kOk) return refused

std::size_t up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

void* reserve(std::size_t bytes) {
  void* made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? nullptr : made;
}

// Large allocations have blocks of their own, as CUDA's have; small ones lie anywhere.
void* reserve_aligned(std::size_t bytes) {
  if (bytes < kGranularity / 2) return reserve(bytes);
  void* made = reserve(bytes + kGranularity);
  if (made == nullptr) return nullptr;
  const auto begin = reinterpret_cast<Pointer>(made);
  const Pointer base = up(begin, kGranularity);
  if (base > begin) munmap(made, base - begin);
  munmap(reinterpret_cast<void*>(base + bytes), begin + kGranularity - base);
  return reinterpret_cast<void*>(base);
}

int make_file(std::size_t bytes, int gpu, int handle_types) {
  const int made = memfd_create("stand-in-gpu", MFD_CLOEXEC);
  if (made < 0 || ftruncate(made, static_cast<off_t>(bytes + kPage)) != 0) return -1;
  const Label label{kMagic, gpu, handle_types};
  if (pwrite(made, &label, sizeof label, static_cast<off_t>(bytes)) != sizeof label) return -1;
  return made;
}

std::byte* alias_of(int descriptor, std::size_t bytes) {
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return made == MAP_FAILED ? nullptr : static_cast<std::byte*>(made);
}

Range* find_range(Pointer address) {
  auto& ranges = state().ranges;
  auto found = ranges.upper_bound(address);
  if (found == ranges.begin()) return nullptr;
  --found;
  return address < found->first + found->second.bytes ? &found->second : nullptr;
}

// Where a copy from or to `bytes` of device memory goes; ranges that touch are copied piece by
// piece by the caller, as `bytes` says how far this one goes.
std::byte* reach(Pointer address, std::size_t& bytes, const Context* context) {
  Range* range = find_range(address);
  if (range == nullptr) return nullptr;
  if (context != nullptr) {
    const bool mine =
        range->allocation != 0
            ? range->access.contains(context->ordinal)
            : range->context == context ||
                  (range->context != nullptr && context->peers.contains(range->context->ordinal));
    if (!mine) return nullptr;
  }
  bytes = std::min<std::size_t>(bytes, range->base + range->bytes - address);
  return range->alias + (address - range->base);
}

bool is_pinned(const void* host, std::size_t bytes) {
  const auto address = reinterpret_cast<Pointer>(host);
  for (const auto& [base, length] : state().pinned) {
    if (address >= base && address + bytes <= base + length) return true;
  }
  return false;
}

struct Move {
  std::byte* destination;
  const std::byte* source;
  std::size_t bytes;
};

// A side of a copy: device memory where `device`, else host memory.
struct Side {
  bool device;
  Pointer address;
  const Context* context;  // whose access counts; null: anyone's
};

bool find_moves(Side destination, Side source, std::size_t bytes, std::vector<Move>& moves) {
  for (std::size_t done = 0; done < bytes;) {
    std::size_t now = bytes - done;
    const auto side = [&](const Side& of) {
      return of.device ? reach(of.address + done, now, of.context)
                       : reinterpret_cast<std::byte*>(of.address + done);
    };
    std::byte* to = side(destination);
    const std::byte* from = side(source);
    if (to == nullptr || from == nullptr) return false;
    moves.push_back({to, from, now});
    done += now;
  }
  return true;
}

Result copy_now(Side destination, Side source, std::size_t bytes) {
  if (current_context() == nullptr) return kInvalidContext;
  std::vector<Move> moves;
  if (!find_moves(destination, source, bytes, moves)) return kInvalidValue;
  for (const Move& move : moves) std::memcpy(move.destination, move.source, move.bytes);
  return kOk;
}

Result start_copy(const char* kind, Side destination, Side source, std::size_t bytes,
                  Stream* stream) {
  if (stream == nullptr) return kInvalidHandle;
  if (current_context() != stream->context) return kInvalidContext;
  std::vector<Move> moves;
  if (!find_moves(destination, source, bytes, moves)) return kInvalidValue;
  State& s = state();
  const bool lost = s.faults.lose.contains(kind);
  const long delay_us = s.faults.delay_us;
  const bool fails = s.faults.fail > 0 && --s.faults.fail == 0;
  stream->add([moves, lost, delay_us, fails]() -> Result {
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    if (fails) return kIllegalAddress;
    for (const Move& move : moves) {
      if (!lost) std::memcpy(move.destination, move.source, move.bytes);
    }
    return kOk;
  });
  return kOk;
}

// What frees memory waits for all streams first.
void drain_all(std::unique_lock<std::mutex>& lock) {
  // Shared: another thread may destroy one meanwhile.
  const std::map<Stream*, std::shared_ptr<Stream>> streams = state().streams;
  lock.unlock();
  for (const auto& [handle, stream] : streams) stream->drain();
  lock.lock();
}

Result free_range(Pointer address) {
  auto& ranges = state().ranges;
  const auto found = ranges.find(address);
  if (found == ranges.end()) return kInvalidValue;
  munmap(found->second.alias, found->second.bytes);
  munmap(reinterpret_cast<void*>(found->second.base), found->second.bytes);
  if (found->second.descriptor >= 0) close(found->second.descriptor);
  ranges.erase(found);
  return kOk;
}

}  // namespace

EXPORT void stand_in_cuda_configure(const char* text) {
  const std::lock_guard lock(state().mutex);
  configure(text);
}
/// Forgets everything, as if this process had never used CUDA: for a child that was forked.
EXPORT void stand_in_cuda_restart() { the_state() = new State; }
/// Ranges of device memory that this process has made, mapped or opened.
EXPORT int stand_in_cuda_ranges() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().ranges.size());
}
/// Says what this process has of the driver now, in words; the text is the thread's, until it calls
/// again.
EXPORT const char* stand_in_cuda_held() {
  thread_local std::string text;
  const std::lock_guard lock(state().mutex);
  int own = 0;
  int opened = 0;
  int mapped = 0;
  std::size_t bytes = 0;
  for (const auto& [base, range] : state().ranges) {
    (range.allocation != 0 ? mapped : range.opened > 0 ? opened : own) += 1;
    bytes += range.bytes;
  }
  std::size_t pinned_bytes = 0;
  for (const auto& [base, size] : state().pinned) pinned_bytes += size;
  text = std::to_string(own) + " allocations, " + std::to_string(opened) + " IPC handles, " +
         std::to_string(mapped) + " mappings: " + std::to_string(bytes) + " bytes; " +
         std::to_string(state().pinned.size()) + " pinned ranges: " + std::to_string(pinned_bytes) +
         " bytes; " + std::to_string(state().allocations.size()) + " physical allocations, " +
         std::to_string(state().reserved.size()) + " reserved ranges, " +
         std::to_string(state().streams.size()) + " streams, " + std::to_string(events) + " events";
  return text.c_str();
}

EXPORT Result cuInit(unsigned flags) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (flags != 0) return kInvalidValue;
  if (!s.initialized) {
    const char* text = getenv("RW_STAND_IN_CUDA");
    configure(text != nullptr ? text : "");
    s.initialized = true;
  }
  const auto refused = s.faults.refuse.find("cuInit");
  return refused != s.faults.refuse.end() ? refused->second : kOk;
}
EXPORT Result cuModuleGetLoadingMode(int* mode) {
  *mode = state().faults.lazy ? 2 : 1;
  return kOk;
}
EXPORT Result cuGetErrorName(Result error, const char** name) {
  *name = error == kOk               ? "CUDA_SUCCESS"
          : error == kOutOfMemory    ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : error == kNotPermitted   ? "CUDA_ERROR_NOT_PERMITTED"
                                     : "CUDA_ERROR_STAND_IN";
  return kOk;
}
EXPORT Result cuGetErrorString(Result error, const char** text) {
  thread_local std::string words;
  words = "stand-in error " + std::to_string(error);
  *text = words.c_str();
  return kOk;
}
EXPORT Result cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount");
  *count = static_cast<int>(state().contexts.size());
  return kOk;
}
EXPORT Result cuDeviceGet(int* device, int ordinal) {
  ENTER("cuDeviceGet");
  if (ordinal < 0 || ordinal >= static_cast<int>(state().contexts.size())) return kInvalidDevice;
  *device = ordinal;
  return kOk;
}
EXPORT Result cuDeviceGetName(char* name, int length, int device) {
  ENTER("cuDeviceGetName");
  snprintf(name, static_cast<std::size_t>(length), "Stand-in %d",
           state().contexts[static_cast<std::size_t>(device)]->gpu);
  return kOk;
}
EXPORT Result cuDeviceGetUuid_v2(char* uuid, int device) {
  ENTER("cuDeviceGetUuid_v2");
  std::memset(uuid, 0x5a, 16);
  uuid[0] = static_cast<char>(state().contexts[static_cast<std::size_t>(device)]->gpu);
  return kOk;
}
EXPORT Result cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  ENTER("cuDeviceGetAttribute");
  const auto told = state().faults.attributes.find(attribute);
  if (told != state().faults.attributes.end()) {
    *value = told->second;
    return kOk;
  }
  *value = (attribute == 122 && !state().faults.no_marks) || attribute == 124 ? 1 : 0;
  return kOk;
}
EXPORT Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  *context = state().contexts.at(static_cast<std::size_t>(device)).get();
  ++(*context)->retained;
  return kOk;
}
EXPORT Result cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER("cuDevicePrimaryCtxRelease_v2");
  --state().contexts.at(static_cast<std::size_t>(device))->retained;
  return kOk;
}
EXPORT Result cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  ENTER("cuDevicePrimaryCtxGetState");
  *flags = 0;
  *active = state().contexts.at(static_cast<std::size_t>(device))->retained > 0 ? 1 : 0;
  return kOk;
}
EXPORT Result cuCtxGetCurrent(Context** context) {
  *context = current_context();
  return kOk;
}
EXPORT Result cuCtxPushCurrent_v2(Context* context) {
  ENTER("cuCtxPushCurrent_v2");
  if (context == nullptr) return kInvalidContext;
  current.push_back(context);
  return kOk;
}
EXPORT Result cuCtxPopCurrent_v2(Context** context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kOk;
}
EXPORT Result cuCtxSetCurrent(Context* context) {
  current.clear();
  if (context != nullptr) current.push_back(context);
  return kOk;
}
EXPORT Result cuCtxSynchronize() {
  Result refused_ = kOk;
  auto lock = enter("cuCtxSynchronize", refused_);
  if (refused_ == kOk) drain_all(lock);
  return refused_;
}
EXPORT Result cuCtxEnablePeerAccess(Context* peer, unsigned /*flags*/) {
  ENTER("cuCtxEnablePeerAccess");
  if (current_context() == nullptr || peer == nullptr) return kInvalidContext;
  if (state().faults.no_peer) return kPeerUnsupported;
  return current_context()->peers.insert(peer->ordinal).second ? kOk : kPeerAlreadyEnabled;
}
EXPORT Result cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int now = 0;
  std::swap(now, *mode);
  return kOk;
}
EXPORT Result cuPointerGetAttribute(void* value, int attribute, Pointer address) {
  ENTER("cuPointerGetAttribute");
  const Range* range = find_range(address);
  if (range == nullptr) {
    if (attribute != 2 || !is_pinned(reinterpret_cast<void*>(address), 1)) return kInvalidValue;
    *static_cast<unsigned*>(value) = 1;
    return kOk;
  }
  switch (attribute) {
    case 1: *static_cast<Context**>(value) = range->context; return kOk;
    case 2: *static_cast<unsigned*>(value) = 2; return kOk;
    case 7:
      if (range->number == 0) return kInvalidValue;
      *static_cast<std::uint64_t*>(value) = range->number;
      return kOk;
    case 9:
      for (const auto& context : state().contexts) {
        if (range->context == context.get() || (!range->context && range->gpu == context->gpu)) {
          *static_cast<int*>(value) = context->ordinal;
          return kOk;
        }
      }
      return kInvalidValue;
    case 10: *static_cast<int*>(value) = range->allocation == 0 && range->opened == 0; return kOk;
    default: return kInvalidValue;
  }
}
EXPORT Result cuPointerSetAttribute(const void* value, int attribute, Pointer address) {
  ENTER("cuPointerSetAttribute");
  if (find_range(address) == nullptr || attribute != 6) return kInvalidValue;
  return *static_cast<const unsigned*>(value) <= 1 ? kOk : kInvalidValue;
}
EXPORT Result cuMemGetAddressRange_v2(Pointer* base, std::size_t* bytes, Pointer address) {
  ENTER("cuMemGetAddressRange_v2");
  const Range* range = find_range(address);
  if (range == nullptr) return kInvalidValue;
  *base = range->base;
  *bytes = range->bytes;
  return kOk;
}
EXPORT Result cuMemAlloc_v2(Pointer* address, std::size_t bytes) {
  ENTER("cuMemAlloc_v2");
  Context* context = current_context();
  if (context == nullptr) return kInvalidContext;
  if (bytes == 0) return kInvalidValue;
  Range range;
  range.bytes = up(bytes, kPage);
  range.gpu = context->gpu;
  range.context = context;
  range.descriptor = make_file(range.bytes, range.gpu, 0);
  if (range.descriptor < 0) return kOutOfMemory;
  range.alias = alias_of(range.descriptor, range.bytes);
  range.base = reinterpret_cast<Pointer>(reserve_aligned(range.bytes));
  if (state().faults.touchable &&
      mmap(reinterpret_cast<void*>(range.base), range.bytes, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_FIXED, range.descriptor, 0) == MAP_FAILED) {
    return kOutOfMemory;
  }
  range.number = ++state().last_number;
  *address = range.base;
  state().ranges[range.base] = range;
  return kOk;
}
// The descriptor stands at the range's begin in the allocation's file, from which a dma-buf of CUDA
// counts.
EXPORT Result cuMemGetHandleForAddressRange(void* handle, Pointer address, std::size_t bytes,
                                            int type, unsigned long long flags) {
  ENTER("cuMemGetHandleForAddressRange");
  const Range* range = find_range(address);
  if (range == nullptr || bytes > range->base + range->bytes - address || type != 1 ||
      address % kPage != 0 || bytes % kPage != 0 || bytes == 0) {
    return kInvalidValue;
  }
  if (flags != 0) return kNotSupported;  // as drivers before 12.8
  const int file = range->allocation != 0 ? state().allocations[range->allocation].descriptor
                                          : range->descriptor;
  const int made =
      open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR | O_CLOEXEC);  // its own place
  if (made < 0) return kOutOfMemory;
  lseek(made, static_cast<off_t>(address - range->base), SEEK_SET);
  std::memcpy(handle, &made, sizeof made);
  return kOk;
}
EXPORT Result cuMemFree_v2(Pointer address) {
  Result refused_ = kOk;
  auto lock = enter("cuMemFree_v2", refused_);
  if (refused_ != kOk) return refused_;
  drain_all(lock);
  return free_range(address);
}
EXPORT Result cuMemHostAlloc(void** address, std::size_t bytes, unsigned /*flags*/) {
  ENTER("cuMemHostAlloc");
  if (current_context() == nullptr) return kInvalidContext;
  *address = std::aligned_alloc(kPage, up(bytes, kPage));
  state().pinned[reinterpret_cast<Pointer>(*address)] = bytes;
  return kOk;
}
EXPORT Result cuMemFreeHost(void* address) {
  ENTER("cuMemFreeHost");
  if (state().pinned.erase(reinterpret_cast<Pointer>(address)) == 0) return kInvalidValue;
  std::free(address);
  return kOk;
}
EXPORT Result cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned /*flags*/) {
  ENTER("cuMemHostRegister_v2");
  if (current_context() == nullptr) return kInvalidContext;
  return state().pinned.emplace(reinterpret_cast<Pointer>(address), bytes).second
             ? kOk
             : kAlreadyRegistered;
}
EXPORT Result cuMemHostUnregister(void* address) {
  ENTER("cuMemHostUnregister");
  return state().pinned.erase(reinterpret_cast<Pointer>(address)) == 1 ? kOk : kNotRegistered;
}
EXPORT Result cuMemHostGetDevicePointer_v2(Pointer* device, void* host, unsigned /*flags*/) {
  ENTER("cuMemHostGetDevicePointer_v2");
  if (!is_pinned(host, 1)) return kInvalidValue;
  *device = reinterpret_cast<Pointer>(host);
  return kOk;
}
EXPORT Result cuMemcpyHtoDAsync_v2(Pointer destination, const void* source, std::size_t bytes,
                                   Stream* stream) {
  ENTER("cuMemcpyHtoDAsync_v2");
  if (!is_pinned(source, bytes)) return kInvalidValue;
  return start_copy("htod", {true, destination, current_context()},
                    {false, reinterpret_cast<Pointer>(source), nullptr}, bytes, stream);
}
EXPORT Result cuMemcpyDtoHAsync_v2(void* destination, Pointer source, std::size_t bytes,
                                   Stream* stream) {
  ENTER("cuMemcpyDtoHAsync_v2");
  if (!is_pinned(destination, bytes)) return kInvalidValue;
  return start_copy("dtoh", {false, reinterpret_cast<Pointer>(destination), nullptr},
                    {true, source, current_context()}, bytes, stream);
}
EXPORT Result cuMemcpyDtoDAsync_v2(Pointer destination, Pointer source, std::size_t bytes,
                                   Stream* stream) {
  ENTER("cuMemcpyDtoDAsync_v2");
  return start_copy("dtod", {true, destination, current_context()},
                    {true, source, current_context()}, bytes, stream);
}
EXPORT Result cuMemcpyPeerAsync(Pointer destination, Context* destination_context, Pointer source,
                                Context* source_context, std::size_t bytes, Stream* stream) {
  ENTER("cuMemcpyPeerAsync");
  return start_copy("dtod", {true, destination, destination_context},
                    {true, source, source_context}, bytes, stream);
}
EXPORT Result cuMemcpyHtoD_v2(Pointer destination, const void* source, std::size_t bytes) {
  ENTER("cuMemcpyHtoD_v2");
  return copy_now({true, destination, current_context()},
                  {false, reinterpret_cast<Pointer>(source), nullptr}, bytes);
}
EXPORT Result cuMemcpyDtoH_v2(void* destination, Pointer source, std::size_t bytes) {
  ENTER("cuMemcpyDtoH_v2");
  return copy_now({false, reinterpret_cast<Pointer>(destination), nullptr},
                  {true, source, current_context()}, bytes);
}
EXPORT Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kOk;
}
EXPORT Result cuStreamCreateWithPriority(Stream** stream, unsigned flags, int /*priority*/) {
  ENTER("cuStreamCreateWithPriority");
  if (current_context() == nullptr) return kInvalidContext;
  if (flags != 1) return kInvalidValue;  // the driver's streams must wait for no other
  const auto made = std::make_shared<Stream>(current_context());
  state().streams[made.get()] = made;
  *stream = made.get();
  return kOk;
}
EXPORT Result cuStreamDestroy_v2(Stream* stream) {
  std::shared_ptr<Stream> last;  // ends without the lock
  ENTER("cuStreamDestroy_v2");
  const auto found = state().streams.find(stream);
  if (found == state().streams.end()) return kInvalidHandle;
  last = found->second;
  state().streams.erase(found);
  return kOk;
}
EXPORT Result cuStreamQuery(Stream* stream) {
  ENTER("cuStreamQuery");
  stream = stream_of(stream);
  return stream == nullptr ? kInvalidContext : stream->query();
}
// A word that streams write and wait for: pinned, or in device memory that the context reaches.
static std::atomic<std::uint64_t>* word_at(Pointer address, const Context* context) {
  if (address % 8 != 0) return nullptr;
  if (is_pinned(reinterpret_cast<void*>(address), 8)) {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(address);
  }
  std::size_t bytes = 8;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(reach(address, bytes, context));
}
EXPORT Result cuStreamWriteValue64_v2(Stream* stream, Pointer address, std::uint64_t value,
                                      unsigned flags) {
  ENTER("cuStreamWriteValue64_v2");
  if (flags != 0) return kInvalidValue;
  std::atomic<std::uint64_t>* word = word_at(address, stream->context);
  if (word == nullptr) return kInvalidValue;
  stream->add([word, value]() -> Result {
    word->store(value, std::memory_order_release);
    return kOk;
  });
  return kOk;
}
struct StreamOperation {
  int operation;
  int unused;
  Pointer address;
  std::uint64_t value;
  unsigned flags;
  unsigned unused_too;
  std::uint64_t rest[2];
};
EXPORT Result cuStreamBatchMemOp_v2(Stream* stream, unsigned count, StreamOperation* operations,
                                    unsigned flags) {
  ENTER("cuStreamBatchMemOp_v2");
  stream = stream_of(stream);
  if (stream == nullptr || flags != 0 || count > 255) return kInvalidValue;
  if (state().faults.no_marks) return kNotSupported;
  struct Item {
    bool waits;
    bool equal;  // until the word is the value, and not at least that
    std::atomic<std::uint64_t>* word;
    std::uint64_t value;
  };
  std::vector<Item> items;
  for (unsigned k = 0; k < count; ++k) {
    const StreamOperation& one = operations[k];
    auto* word = word_at(one.address, stream->context);
    const unsigned most = one.operation == 4 ? 1 : 0;
    if ((one.operation != 4 && one.operation != 5) || one.flags > most || word == nullptr) {
      return kInvalidValue;
    }
    items.push_back({one.operation == 4, one.flags == 1, word, one.value});
  }
  const long delay_us = state().faults.delay_us;
  stream->add([items, delay_us]() -> Result {
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    for (const Item& item : items) {
      if (!item.waits) {
        item.word->store(item.value, std::memory_order_release);
        continue;
      }
      const auto there = [&item] {
        const std::uint64_t now = item.word->load(std::memory_order_acquire);
        if (item.equal) return now == item.value;
        return static_cast<std::int64_t>(now - item.value) >= 0;
      };
      for (int turn = 0; !there(); ++turn) {
        if (turn < 100) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
      }
    }
    return kOk;
  });
  return kOk;
}
// A kernel is a function of the host here, over a copy of the launch's one argument.
using Find = void* (*)(const void* context, Pointer address, std::size_t bytes);
struct HostKernel {
  std::size_t argument_bytes;
  void (*run)(void* argument, Find find, const void* context);
};
// Where threads of the host use what that context reaches. As on a GPU, a kernel that uses other
// memory ends the program.
static void* find_for_kernel(const void* context, Pointer address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  if (find_range(address) == nullptr) {
    auto* const host = reinterpret_cast<void*>(address);
    if (is_pinned(host, bytes)) return host;
  } else {
    std::size_t reached = bytes;
    std::byte* const found = reach(address, reached, static_cast<const Context*>(context));
    if (found != nullptr && reached == bytes) return found;
  }
  std::fprintf(stderr, "a kernel used %zu bytes at %#llx, which its GPU does not reach\n", bytes,
               static_cast<unsigned long long>(address));
  std::abort();
}
struct LaunchConfig {
  unsigned sizes[7];
  Stream* stream;
};
/// How many kernels were launched.
EXPORT int stand_in_cuda_launches() { return launches().load(); }
EXPORT Result cuLaunchKernelEx(const LaunchConfig* config, const HostKernel* kernel,
                               void** arguments, void** /*extra*/) {
  ENTER("cuLaunchKernelEx");
  Stream* const stream = stream_of(config->stream);
  if (stream == nullptr) return kInvalidHandle;
  if (current_context() != stream->context) return kInvalidContext;
  ++launches();
  const auto* const first = static_cast<const std::byte*>(arguments[0]);
  std::vector<std::byte> argument(first, first + kernel->argument_bytes);
  const long delay_us = state().faults.delay_us;
  const auto run = kernel->run;
  const Context* const context = stream->context;
  stream->add([argument = std::move(argument), run, context, delay_us]() mutable -> Result {
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    run(argument.data(), find_for_kernel, context);
    return kOk;
  });
  return kOk;
}
EXPORT Result cuStreamGetCtx(Stream* stream, Context** context) {
  ENTER("cuStreamGetCtx");
  *context = stream == nullptr ? current_context() : stream->context;
  return *context == nullptr ? kInvalidContext : kOk;
}
EXPORT Result cuStreamIsCapturing(Stream* /*stream*/, int* capturing) {
  *capturing = 0;
  return kOk;
}
// Between memory of any kinds: device memory is told by its address.
EXPORT Result cuMemcpyAsync(Pointer destination, Pointer source, std::size_t bytes,
                            Stream* stream) {
  ENTER("cuMemcpyAsync");
  stream = stream_of(stream);
  if (bytes == 0) return kOk;
  const bool to = find_range(destination) != nullptr;
  const bool from = find_range(source) != nullptr;
  const char* kind = !to ? "dtoh" : from ? "dtod" : "htod";
  Context* context = current_context();
  // The host's pageable memory is read before the call returns, as CUDA stages it.
  if (to && !from && !is_pinned(reinterpret_cast<void*>(source), bytes)) {
    auto staged = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(staged->data(), reinterpret_cast<void*>(source), bytes);
    const Result started =
        start_copy(kind, {true, destination, context},
                   {false, reinterpret_cast<Pointer>(staged->data()), nullptr}, bytes, stream);
    if (started == kOk) stream->add([staged]() -> Result { return kOk; });
    return started;
  }
  return start_copy(kind, {to, destination, context}, {from, source, context}, bytes, stream);
}
EXPORT Result cuEventCreate(Event** event, unsigned /*flags*/) {
  ENTER("cuEventCreate");
  *event = new Event;
  ++events;
  return kOk;
}
EXPORT Result cuEventDestroy_v2(Event* event) {
  while (event->under_way.load() > 0 && event->stream.load()->query() == kNotReady) {
    std::this_thread::yield();
  }
  delete event;
  --events;
  return kOk;
}
EXPORT Result cuEventRecord(Event* event, Stream* stream) {
  ENTER("cuEventRecord");
  event->stream = stream;
  ++event->under_way;
  stream->add([event]() -> Result {
    --event->under_way;
    return kOk;
  });
  return kOk;
}
EXPORT Result cuEventQuery(Event* event) {
  ENTER("cuEventQuery");
  if (event->under_way.load() == 0) return kOk;
  const Result result = event->stream.load()->query();
  return result == kOk ? kNotReady : result;
}
EXPORT Result cuIpcGetMemHandle(IpcHandle* handle, Pointer address) {
  ENTER("cuIpcGetMemHandle");
  const Range* range = find_range(address);
  if (range == nullptr || range->allocation != 0 || range->opened > 0) return kInvalidValue;
  const FileName name{kMagic, getpid(), range->descriptor, range->bytes, range->number, range->gpu};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->bytes, &name, sizeof name);
  return kOk;
}
EXPORT Result cuIpcOpenMemHandle_v2(Pointer* address, IpcHandle handle, unsigned flags) {
  ENTER("cuIpcOpenMemHandle_v2");
  Context* context = current_context();
  FileName name;
  std::memcpy(&name, handle.bytes, sizeof name);
  if (context == nullptr) return kInvalidContext;
  if (name.magic != kMagic || flags != 1) return kInvalidValue;
  if (name.pid == getpid()) return kInvalidContext;  // as CUDA
  if (name.gpu != context->gpu && state().faults.no_peer) return kPeerUnsupported;
  const std::string path =
      "/proc/" + std::to_string(name.pid) + "/fd/" + std::to_string(name.descriptor);
  const std::string key =
      path + " " + std::to_string(name.number) + " " + std::to_string(context->ordinal);
  for (auto& [base, range] : state().ranges) {
    if (range.ipc_name != key) continue;
    if (!state().faults.ipc_uncounted) ++range.opened;
    *address = base;
    return kOk;
  }
  Range range;
  range.descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (range.descriptor < 0) return kInvalidHandle;
  range.bytes = name.bytes;
  range.alias = alias_of(range.descriptor, range.bytes);
  range.base = reinterpret_cast<Pointer>(reserve(range.bytes));
  range.gpu = name.gpu;
  range.context = context;
  range.ipc_name = key;
  range.opened = 1;
  *address = range.base;
  state().ranges[range.base] = range;
  return kOk;
}
EXPORT Result cuIpcCloseMemHandle(Pointer address) {
  Result refused_ = kOk;
  auto lock = enter("cuIpcCloseMemHandle", refused_);
  if (refused_ != kOk) return refused_;
  drain_all(lock);
  Range* range = find_range(address);
  if (range == nullptr || range->base != address || range->opened == 0) return kInvalidValue;
  return --range->opened > 0 ? kOk : free_range(address);
}
EXPORT Result cuMemGetAllocationGranularity(std::size_t* granularity, const Properties* /*of*/,
                                            int /*option*/) {
  ENTER("cuMemGetAllocationGranularity");
  *granularity = kGranularity;
  return kOk;
}
EXPORT Result cuMemCreate(Allocation* handle, std::size_t bytes, const Properties* properties,
                          unsigned long long /*flags*/) {
  ENTER("cuMemCreate");
  if (bytes % kGranularity != 0 || properties->type != 1) return kInvalidValue;
  Physical made;
  made.bytes = bytes;
  made.gpu = state().contexts.at(static_cast<std::size_t>(properties->location.id))->gpu;
  made.handle_types = properties->handle_types;
  made.descriptor = make_file(bytes, made.gpu, made.handle_types);
  if (made.descriptor < 0) return kOutOfMemory;
  made.references = 1;
  *handle = ++state().last_allocation;
  state().allocations[*handle] = made;
  return kOk;
}
EXPORT Result cuMemRelease(Allocation handle) {
  ENTER("cuMemRelease");
  const auto found = state().allocations.find(handle);
  if (found == state().allocations.end()) return kInvalidValue;
  if (--found->second.references == 0) {
    close(found->second.descriptor);
    state().allocations.erase(found);
  }
  return kOk;
}
EXPORT Result cuMemRetainAllocationHandle(Allocation* handle, void* address) {
  ENTER("cuMemRetainAllocationHandle");
  const Range* range = find_range(reinterpret_cast<Pointer>(address));
  if (range == nullptr || range->allocation == 0) return kInvalidValue;
  ++state().allocations[range->allocation].references;
  *handle = range->allocation;
  return kOk;
}
EXPORT Result cuMemGetAllocationPropertiesFromHandle(Properties* properties, Allocation handle) {
  ENTER("cuMemGetAllocationPropertiesFromHandle");
  const auto found = state().allocations.find(handle);
  if (found == state().allocations.end()) return kInvalidValue;
  *properties = {1, found->second.handle_types, {1, found->second.gpu}, nullptr, {}};
  return kOk;
}
EXPORT Result cuMemExportToShareableHandle(void* made, Allocation handle, int type,
                                           unsigned long long /*flags*/) {
  ENTER("cuMemExportToShareableHandle");
  const auto found = state().allocations.find(handle);
  if (found == state().allocations.end() || type != 1) return kInvalidValue;
  if ((found->second.handle_types & 1) == 0) return kInvalidValue;
  const int descriptor = fcntl(found->second.descriptor, F_DUPFD_CLOEXEC, 3);
  if (descriptor < 0) return kOutOfMemory;
  std::memcpy(made, &descriptor, sizeof descriptor);
  return kOk;
}
EXPORT Result cuMemImportFromShareableHandle(Allocation* handle, void* from, int type) {
  ENTER("cuMemImportFromShareableHandle");
  const int descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(from));
  const off_t size = lseek(descriptor, 0, SEEK_END);
  Label label{};
  if (type != 1 || size < static_cast<off_t>(kPage) ||
      pread(descriptor, &label, sizeof label, size - static_cast<off_t>(kPage)) != sizeof label ||
      label.magic != kMagic) {
    return kInvalidValue;
  }
  Physical made;
  made.descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
  made.bytes = static_cast<std::size_t>(size) - kPage;
  made.gpu = label.gpu;
  made.handle_types = label.handle_types;
  made.references = 1;
  *handle = ++state().last_allocation;
  state().allocations[*handle] = made;
  return kOk;
}
EXPORT Result cuMemAddressReserve(Pointer* address, std::size_t bytes, std::size_t /*alignment*/,
                                  Pointer /*at*/, unsigned long long /*flags*/) {
  ENTER("cuMemAddressReserve");
  if (bytes % kGranularity != 0) return kInvalidValue;
  *address = reinterpret_cast<Pointer>(reserve_aligned(bytes));
  if (*address == 0) return kOutOfMemory;
  state().reserved[*address] = bytes;
  return kOk;
}
EXPORT Result cuMemAddressFree(Pointer address, std::size_t bytes) {
  ENTER("cuMemAddressFree");
  const auto found = state().reserved.find(address);
  if (found == state().reserved.end() || found->second != bytes) return kInvalidValue;
  const auto mapped = state().ranges.lower_bound(address);
  if (mapped != state().ranges.end() && mapped->first < address + bytes) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), bytes);
  state().reserved.erase(found);
  return kOk;
}
EXPORT Result cuMemMap(Pointer address, std::size_t bytes, std::size_t offset, Allocation handle,
                       unsigned long long /*flags*/) {
  ENTER("cuMemMap");
  const auto found = state().allocations.find(handle);
  if (found == state().allocations.end() || offset != 0 || bytes > found->second.bytes) {
    return kInvalidValue;
  }
  Range range;
  range.base = address;
  range.bytes = bytes;
  range.alias = alias_of(found->second.descriptor, bytes);
  if (range.alias == nullptr) return kOutOfMemory;
  range.gpu = found->second.gpu;
  range.allocation = handle;
  ++found->second.references;
  state().ranges[address] = range;
  return kOk;
}
EXPORT Result cuMemUnmap(Pointer address, std::size_t bytes) {
  Result refused_ = kOk;
  auto lock = enter("cuMemUnmap", refused_);
  if (refused_ != kOk) return refused_;
  drain_all(lock);
  const auto found = state().ranges.find(address);
  if (found == state().ranges.end() || found->second.bytes != bytes) return kInvalidValue;
  munmap(found->second.alias, bytes);
  const auto allocation = state().allocations.find(found->second.allocation);
  if (--allocation->second.references == 0) {
    close(allocation->second.descriptor);
    state().allocations.erase(allocation);
  }
  state().ranges.erase(found);
  return kOk;
}
EXPORT Result cuMemSetAccess(Pointer address, std::size_t bytes, const Access* access,
                             std::size_t count) {
  ENTER("cuMemSetAccess");
  auto range = state().ranges.find(address);
  for (Pointer at = address; at < address + bytes; ++range) {
    if (range == state().ranges.end() || range->first != at) return kInvalidValue;
    for (std::size_t i = 0; i < count; ++i) {
      const auto ordinal = static_cast<std::size_t>(access[i].location.id);
      if (ordinal >= state().contexts.size()) return kInvalidDevice;
      if (state().faults.no_peer && state().contexts[ordinal]->gpu != range->second.gpu) {
        return kInvalidDevice;
      }
      range->second.access.insert(access[i].location.id);
    }
    at += range->second.bytes;
  }
  return kOk;
}
