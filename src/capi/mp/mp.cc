// The entry points of libmp's API.
#include "ropewalk/compat/mp.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "capi/mp/engine.h"
#include "capi/mp/failure.h"

// NOLINTNEXTLINE(readability-identifier-naming): libmp's name
struct mp_desc_queue {
  std::vector<ropewalk::mp::StreamOperation> operations;
};

namespace ropewalk::mp {
namespace {

// libmp's handles name no context: the process has one.
std::unique_ptr<Engine>& the_engine() {
  static std::unique_ptr<Engine> engine;
  return engine;
}

Engine& engine() {
  Engine* const its = the_engine().get();
  if (its == nullptr) throw Failure(EINVAL, "mp_init was not called");
  return *its;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

int report(const char* entry, int code, const char* text) {
  try {
    last_error() = std::string(entry) + ": " + text;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
  // libmp's own switch.
  const char* const warns = std::getenv("MP_ENABLE_WARN");
  if (warns == nullptr || std::strcmp(warns, "0") != 0) {
    std::fprintf(stderr, "libmp: %s\n", last_error().c_str());
  }
  return code;
}

// Runs `body` for an entry point.
template <typename Body>
int guarded(const char* entry, Body&& body) noexcept {
  try {
    last_error().clear();
    std::forward<Body>(body)();
    return MP_SUCCESS;
  } catch (const Failure& failure) {
    return report(entry, failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return report(entry, ENOMEM, "memory ran out");
  } catch (const std::exception& error) {
    return report(entry, MP_FAILURE, error.what());
  } catch (...) {
    return report(entry, MP_FAILURE, "unknown exception");
  }
}

void check_flags(int flags) {
  // The numbers are consecutive and were tested as bits, so that programs pass sums of them.
  require(flags >= 0 && flags < 16, "flags: not mp_init_flags");
}

int begin(const char* entry, const std::function<rwResult_t(rwComm_t*)>& join, const int* peers,
          int count, int flags, int gpu) {
  return guarded(entry, [&] {
    require(the_engine() == nullptr, "mp_init was called, and mp_finalize was not");
    check_flags(flags);
    Arguments arguments;
    arguments.gpu = gpu;
    if (peers != nullptr) {
      require(count >= 0, "count: negative");
      arguments.peers.emplace(peers, peers + count);
    }
    the_engine() = std::make_unique<Engine>(join, arguments);
  });
}

// ---- arguments ------------------------------------------------------------------------------

template <typename T>
T& checked(T* pointer, const char* text) {
  require(pointer != nullptr, text);
  return *pointer;
}

mp_request*& out(mp_request_t* req) { return checked(req, "req: NULL"); }

Block block_of(void* data, std::size_t bytes, mp_reg_t* handle) {
  const mp_reg& reg = checked(checked(handle, "reg: NULL"), "reg: not registered");
  const Block block{static_cast<std::byte*>(data), bytes};
  if (bytes == 0) return block;
  require(data != nullptr, "buf: NULL");
  require(block.data >= reg.data && bytes <= reg.bytes &&
              block.data - reg.data <= static_cast<std::ptrdiff_t>(reg.bytes - bytes),
          "buf: leaves the registration");
  return block;
}

std::size_t size_of(int size) {
  require(size >= 0, "size: negative");
  return static_cast<std::size_t>(size);
}

mp_request message(Kind kind, void* data, int size, int peer, mp_reg_t* reg) {
  mp_request made;
  made.kind = kind;
  made.peer = peer;
  made.bytes = size_of(size);
  made.blocks.push_back(block_of(data, made.bytes, reg));
  return made;
}

mp_request message(Kind kind, const iovec* blocks, int count, int peer, mp_reg_t* reg) {
  require(count >= 1 && count <= MP_MOST_BLOCKS, "nblocks: not in 1 to 30");
  require(blocks != nullptr, "v: NULL");
  mp_request made;
  made.kind = kind;
  made.peer = peer;
  for (int k = 0; k < count; ++k) {
    made.blocks.push_back(block_of(blocks[k].iov_base, blocks[k].iov_len, reg));
    made.bytes += blocks[k].iov_len;
  }
  return made;
}

mp_request transfer(Kind kind, void* data, int size, mp_reg_t* reg, int peer,
                    std::size_t displacement, mp_window_t* window, int flags) {
  require((flags & ~(MP_PUT_INLINE | MP_PUT_NOWAIT)) == 0, "flags: not mp_put_flags");
  mp_request made = message(kind, data, size, peer, reg);
  made.window = &engine().checked(checked(window, "window: NULL"));
  made.displacement = displacement;
  made.buffer_on_gpu = (*reg)->on_gpu;
  made.releases_itself = (flags & MP_PUT_NOWAIT) != 0;
  return made;
}

std::span<mp_request_t> all_of(std::uint32_t count, mp_request_t* req) {
  require(count == 0 || req != nullptr, "req: NULL");
  return {req, count};
}

// ---- forms ----------------------------------------------------------------------------------

int post_now(const char* entry, mp_request_t* req, const auto& make) {
  return guarded(entry, [&] {
    mp_request*& handle = out(req);
    mp_request* const made = engine().prepare(make());
    const bool releases_itself = made->releases_itself;
    engine().post(made);
    handle = releases_itself ? nullptr : made;
  });
}

int prepare_only(const char* entry, mp_request_t* req, const auto& make) {
  return guarded(entry, [&] { out(req) = engine().prepare(make()); });
}

StreamOperation step(StreamStep what, mp_request* request) {
  StreamOperation operation;
  operation.step = what;
  operation.request = request;
  return operation;
}

// Prepares one and posts it on a stream, which waits for it if `blocks`.
int post_on_stream(const char* entry, mp_request_t* req, cudaStream_t stream, bool blocks,
                   const auto& make) {
  return guarded(entry, [&] {
    mp_request*& handle = out(req);
    mp_request* const made = engine().prepare(make());
    const bool releases_itself = made->releases_itself;
    std::vector<StreamOperation> operations{step(StreamStep::kPost, made)};
    if (blocks) operations.push_back(step(StreamStep::kWait, made));
    try {
      engine().enqueue(stream, operations, blocks);
    } catch (...) {
      engine().discard(made);
      throw;
    }
    handle = releases_itself ? nullptr : made;
  });
}

bool is_put(const mp_request& request) { return request.kind == Kind::kPut; }

void require_kind(const mp_request& request, bool puts) {
  require(is_put(request) == puts, puts ? "req: no prepared put" : "req: no prepared send");
}

// Posts prepared ones at once.
int post_prepared(const char* entry, std::uint32_t count, mp_request_t* req, cudaStream_t stream,
                  bool puts, bool blocks) {
  return guarded(entry, [&] {
    const std::span<mp_request_t> given = all_of(count, req);
    std::vector<StreamOperation> operations;
    for (mp_request_t const each : given) {
      require_kind(engine().checked_in(each, State::kPrepared), puts);
      operations.push_back(step(StreamStep::kPost, each));
    }
    std::vector<bool> released;
    for (mp_request_t const each : given) {
      released.push_back(each->releases_itself);
      if (blocks) operations.push_back(step(StreamStep::kWait, each));
    }
    if (!operations.empty()) engine().enqueue(stream, operations, blocks);
    for (std::size_t k = 0; k < given.size(); ++k) {
      if (released[k]) given[k] = nullptr;
    }
  });
}

int wait_on_stream(const char* entry, std::uint32_t count, mp_request_t* req, cudaStream_t stream) {
  return guarded(entry, [&] {
    std::vector<StreamOperation> operations;
    for (mp_request_t const each : all_of(count, req)) {
      require_waitable(engine().checked(each));
      operations.push_back(step(StreamStep::kWait, each));
    }
    if (!operations.empty()) engine().enqueue(stream, operations, true);
  });
}

void require_word(const std::uint32_t* word) {
  require(word != nullptr, "ptr: NULL");
  require(reinterpret_cast<std::uintptr_t>(word) % sizeof *word == 0, "ptr: not aligned");
}

StreamOperation word_step(StreamStep what, std::uint32_t* word, std::uint32_t value,
                          int condition) {
  require_word(word);
  require(!engine().on_gpu(word), "ptr: in GPU memory; words are the host's");
  require(condition >= MP_WAIT_GEQ && condition <= MP_WAIT_AND, "flags: not mp_wait_flags");
  StreamOperation operation;
  operation.step = what;
  operation.word = word;
  operation.value = value;
  operation.condition = condition;
  return operation;
}

mp_desc_queue& queue_of(mp_desc_queue_t* dq) {
  return checked(checked(dq, "dq: NULL"), "dq: not allocated");
}

// Whether the queue's earlier operations post it.
bool posted_in(const mp_desc_queue& queue, const mp_request* request) {
  for (const StreamOperation& operation : queue.operations) {
    if (operation.step == StreamStep::kPost && operation.request == request) return true;
  }
  return false;
}

int add_wait(const char* entry, mp_desc_queue_t* dq, mp_request_t* req, bool receives) {
  return guarded(entry, [&] {
    mp_desc_queue& queue = queue_of(dq);
    mp_request& request = engine().checked(checked(req, "req: NULL"));
    require((request.kind == Kind::kReceive) == receives,
            receives ? "req: no receive" : "req: no send, put or get");
    if (!posted_in(queue, &request)) require_waitable(request);
    require(!request.releases_itself, "req: a put with MP_PUT_NOWAIT cannot be waited for");
    queue.operations.push_back(step(StreamStep::kWait, &request));
  });
}

}  // namespace
}  // namespace ropewalk::mp

using namespace ropewalk::mp;  // NOLINT: this file is the edge

extern "C" {

int mp_query_param(mp_param_t param, int* value) {
  return guarded("mp_query_param", [&] {
    require(param == MP_PARAM_VERSION, "param: not MP_PARAM_VERSION");
    ropewalk::mp::checked(value, "value: NULL") = MP_API_VERSION;
  });
}

// ---- beginning and end ----------------------------------------------------------------------

int mp_ropewalk_id(char* id) {
  return guarded("mp_ropewalk_id", [&] {
    static_assert(MP_ID_BYTES == RW_UNIQUE_ID_BYTES);
    rwUniqueId made;
    check(rwGetUniqueId(&made));
    std::memcpy(&ropewalk::mp::checked(id, "id: NULL"), made.internal, sizeof made.internal);
  });
}

int mp_init_ropewalk(int rank, int size, const char* id, const int* peers, int count, int flags,
                     int gpu_id) {
  const auto join = [=](rwComm_t* comm) {
    rwUniqueId given;
    std::memcpy(given.internal, &ropewalk::mp::checked(id, "id: NULL"), sizeof given.internal);
    return rwCommInitRank(comm, size, given, rank);
  };
  return begin("mp_init", join, peers, count, flags, gpu_id);
}

int mp_init_env(const int* peers, int count, int flags, int gpu_id) {
  return begin("mp_init_env", rwCommInitEnv, peers, count, flags, gpu_id);
}

int mp_rank(void) { return the_engine() == nullptr ? -1 : the_engine()->rank(); }

int mp_size(void) { return the_engine() == nullptr ? -1 : the_engine()->size(); }

void mp_finalize(void) {
  // Also what cannot be finalized ends.
  (void)guarded("mp_finalize", [&] { engine().finalize(); });
  the_engine().reset();
}

const char* mp_last_error(void) { return last_error().c_str(); }

int mp_register(void* addr, size_t length, mp_reg_t* reg) {
  return guarded("mp_register", [&] {
    const bool on_gpu = engine().on_gpu(addr);
    require(addr != nullptr || length == 0, "addr: NULL");
    mp_reg_t& handle = ropewalk::mp::checked(reg, "reg: NULL");
    handle = new mp_reg{static_cast<std::byte*>(addr), length, on_gpu};
  });
}

int mp_deregister(mp_reg_t* reg) {
  return guarded("mp_deregister", [&] {
    delete &ropewalk::mp::checked(ropewalk::mp::checked(reg, "reg: NULL"), "reg: not registered");
    *reg = nullptr;
  });
}

// ---- by the CPU -----------------------------------------------------------------------------

int mp_irecv(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req) {
  return post_now("mp_irecv", req, [&] { return message(Kind::kReceive, buf, size, peer, reg); });
}

int mp_isend(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req) {
  return post_now("mp_isend", req, [&] { return message(Kind::kSend, buf, size, peer, reg); });
}

int mp_irecvv(iovec* v, int nblocks, int peer, mp_reg_t* reg, mp_request_t* req) {
  return post_now("mp_irecvv", req, [&] { return message(Kind::kReceive, v, nblocks, peer, reg); });
}

int mp_isendv(iovec* v, int nblocks, int peer, mp_reg_t* reg, mp_request_t* req) {
  return post_now("mp_isendv", req, [&] { return message(Kind::kSend, v, nblocks, peer, reg); });
}

int mp_wait(mp_request_t* req) {
  return guarded("mp_wait", [&] {
    mp_request*& handle = out(req);
    require_posted(engine().checked(handle));
    engine().wait(std::exchange(handle, nullptr));
  });
}

int mp_wait_all(uint32_t count, mp_request_t* req) {
  return guarded("mp_wait_all", [&] {
    const std::span<mp_request_t> given = all_of(count, req);
    for (mp_request_t const each : given) require_posted(engine().checked(each));
    // All of them end and are released; the first error is told.
    std::unique_ptr<Failure> failure;
    for (mp_request_t& each : given) {
      try {
        engine().wait(std::exchange(each, nullptr));
      } catch (const Failure& error) {
        if (failure == nullptr) failure = std::make_unique<Failure>(error);
      }
    }
    if (failure != nullptr) throw Failure(*failure);
  });
}

int mp_progress_all(uint32_t count, mp_request_t* req) {
  std::uint32_t complete = 0;
  const int result =
      guarded("mp_progress_all", [&] { complete = engine().count_complete(all_of(count, req)); });
  return result == MP_SUCCESS ? static_cast<int>(complete) : -result;
}

// ---- on streams -----------------------------------------------------------------------------

int mp_send_on_stream(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req,
                      cudaStream_t stream) {
  return post_on_stream("mp_send_on_stream", req, stream, true,
                        [&] { return message(Kind::kSend, buf, size, peer, reg); });
}

int mp_isend_on_stream(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req,
                       cudaStream_t stream) {
  return post_on_stream("mp_isend_on_stream", req, stream, false,
                        [&] { return message(Kind::kSend, buf, size, peer, reg); });
}

int mp_isendv_on_stream(iovec* v, int nblocks, int peer, mp_reg_t* reg, mp_request_t* req,
                        cudaStream_t stream) {
  return post_on_stream("mp_isendv_on_stream", req, stream, false,
                        [&] { return message(Kind::kSend, v, nblocks, peer, reg); });
}

int mp_wait_on_stream(mp_request_t* req, cudaStream_t stream) {
  return wait_on_stream("mp_wait_on_stream", 1, req, stream);
}

int mp_wait_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream) {
  return wait_on_stream("mp_wait_all_on_stream", count, req, stream);
}

int mp_send_prepare(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req) {
  return prepare_only("mp_send_prepare", req,
                      [&] { return message(Kind::kSend, buf, size, peer, reg); });
}

int mp_sendv_prepare(iovec* v, int nblocks, int peer, mp_reg_t* reg, mp_request_t* req) {
  return prepare_only("mp_sendv_prepare", req,
                      [&] { return message(Kind::kSend, v, nblocks, peer, reg); });
}

int mp_send_post_on_stream(mp_request_t* req, cudaStream_t stream) {
  return post_prepared("mp_send_post_on_stream", 1, req, stream, false, true);
}

int mp_isend_post_on_stream(mp_request_t* req, cudaStream_t stream) {
  return post_prepared("mp_isend_post_on_stream", 1, req, stream, false, false);
}

int mp_send_post_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream) {
  return post_prepared("mp_send_post_all_on_stream", count, req, stream, false, true);
}

int mp_isend_post_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream) {
  return post_prepared("mp_isend_post_all_on_stream", count, req, stream, false, false);
}

// ---- one-sided ------------------------------------------------------------------------------

int mp_window_create(void* addr, size_t size, mp_window_t* window) {
  return guarded("mp_window_create", [&] {
    mp_window_t& handle = ropewalk::mp::checked(window, "window: NULL");
    handle = engine().create_window(addr, size);
  });
}

int mp_window_destroy(mp_window_t* window) {
  return guarded("mp_window_destroy", [&] {
    engine().destroy_window(ropewalk::mp::checked(window, "window: NULL"));
    *window = nullptr;
  });
}

int mp_iput(void* src, int size, mp_reg_t* src_reg, int peer, size_t displ, mp_window_t* dst_window,
            mp_request_t* req, int flags) {
  return post_now("mp_iput", req, [&] {
    return transfer(Kind::kPut, src, size, src_reg, peer, displ, dst_window, flags);
  });
}

int mp_iget(void* dst, int size, mp_reg_t* dst_reg, int peer, size_t displ, mp_window_t* src_window,
            mp_request_t* req) {
  return post_now("mp_iget", req, [&] {
    return transfer(Kind::kGet, dst, size, dst_reg, peer, displ, src_window, 0);
  });
}

int mp_iput_on_stream(void* src, int size, mp_reg_t* src_reg, int peer, size_t displ,
                      mp_window_t* dst_window, mp_request_t* req, int flags, cudaStream_t stream) {
  return post_on_stream("mp_iput_on_stream", req, stream, false, [&] {
    return transfer(Kind::kPut, src, size, src_reg, peer, displ, dst_window, flags);
  });
}

int mp_iget_on_stream(void* dst, int size, mp_reg_t* dst_reg, int peer, size_t displ,
                      mp_window_t* src_window, mp_request_t* req, cudaStream_t stream) {
  return post_on_stream("mp_iget_on_stream", req, stream, false, [&] {
    return transfer(Kind::kGet, dst, size, dst_reg, peer, displ, src_window, 0);
  });
}

int mp_put_prepare(void* src, int size, mp_reg_t* src_reg, int peer, size_t displ,
                   mp_window_t* dst_window, mp_request_t* req, int flags) {
  return prepare_only("mp_put_prepare", req, [&] {
    return transfer(Kind::kPut, src, size, src_reg, peer, displ, dst_window, flags);
  });
}

int mp_iput_post_on_stream(mp_request_t* req, cudaStream_t stream) {
  return post_prepared("mp_iput_post_on_stream", 1, req, stream, true, false);
}

int mp_iput_post_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream) {
  return post_prepared("mp_iput_post_all_on_stream", count, req, stream, true, false);
}

// ---- words ----------------------------------------------------------------------------------

int mp_wait32(uint32_t* ptr, uint32_t value, int flags) {
  return guarded("mp_wait32", [&] {
    (void)word_step(StreamStep::kWaitWord, ptr, value, flags);
    engine().wait_word(ptr, value, flags);
  });
}

int mp_wait32_on_stream(uint32_t* ptr, uint32_t value, int flags, cudaStream_t stream) {
  return guarded("mp_wait32_on_stream", [&] {
    const StreamOperation operation = word_step(StreamStep::kWaitWord, ptr, value, flags);
    engine().enqueue(stream, std::span(&operation, 1), true);
  });
}

// ---- kernels --------------------------------------------------------------------------------

int mp_kernel_send(mp_request_t* req, mp_kernel_send_t* send) {
  return guarded("mp_kernel_send", [&] {
    mp_kernel_send_t& made = ropewalk::mp::checked(send, "send: NULL");
    mp_request*& handle = out(req);
    const bool releases_itself = engine().checked_in(handle, State::kPrepared).releases_itself;
    made = engine().start_by_kernel(handle);
    if (releases_itself) handle = nullptr;
  });
}

int mp_kernel_wait(uint32_t count, mp_request_t* req, mp_kernel_wait_t* waits) {
  return guarded("mp_kernel_wait", [&] {
    require(count == 0 || waits != nullptr, "waits: NULL");
    engine().wait_by_kernel(all_of(count, req), waits);
  });
}

int mp_kernel_word(uint32_t* ptr, mp_kernel_word_t* word) {
  return guarded("mp_kernel_word", [&] {
    mp_kernel_word_t& made = ropewalk::mp::checked(word, "word: NULL");
    require_word(ptr);
    made = engine().word_for_kernel(ptr);
  });
}

int mp_kernel_memory(size_t bytes, void** memory) {
  return guarded("mp_kernel_memory", [&] {
    void*& made = ropewalk::mp::checked(memory, "memory: NULL");
    made = engine().allocate_for_kernels(bytes);
  });
}

// ---- queues of descriptors ------------------------------------------------------------------

int mp_desc_queue_alloc(mp_desc_queue_t* dq) {
  return guarded("mp_desc_queue_alloc",
                 [&] { ropewalk::mp::checked(dq, "dq: NULL") = new mp_desc_queue; });
}

int mp_desc_queue_free(mp_desc_queue_t* dq) {
  return guarded("mp_desc_queue_free", [&] {
    delete &queue_of(dq);
    *dq = nullptr;
  });
}

int mp_desc_queue_add_send(mp_desc_queue_t* dq, mp_request_t* req) {
  return guarded("mp_desc_queue_add_send", [&] {
    mp_desc_queue& queue = queue_of(dq);
    mp_request& request =
        engine().checked_in(ropewalk::mp::checked(req, "req: NULL"), State::kPrepared);
    require(!posted_in(queue, &request), "req: in the queue already");
    queue.operations.push_back(step(StreamStep::kPost, &request));
  });
}

int mp_desc_queue_add_wait_send(mp_desc_queue_t* dq, mp_request_t* req) {
  return add_wait("mp_desc_queue_add_wait_send", dq, req, false);
}

int mp_desc_queue_add_wait_recv(mp_desc_queue_t* dq, mp_request_t* req) {
  return add_wait("mp_desc_queue_add_wait_recv", dq, req, true);
}

int mp_desc_queue_add_wait_value32(mp_desc_queue_t* dq, uint32_t* ptr, uint32_t value, int flags) {
  return guarded("mp_desc_queue_add_wait_value32", [&] {
    queue_of(dq).operations.push_back(word_step(StreamStep::kWaitWord, ptr, value, flags));
  });
}

int mp_desc_queue_add_write_value32(mp_desc_queue_t* dq, uint32_t* ptr, uint32_t value) {
  return guarded("mp_desc_queue_add_write_value32", [&] {
    queue_of(dq).operations.push_back(word_step(StreamStep::kWriteWord, ptr, value, MP_WAIT_GEQ));
  });
}

int mp_desc_queue_post_on_stream(cudaStream_t stream, mp_desc_queue_t* dq, int flags) {
  return guarded("mp_desc_queue_post_on_stream", [&] {
    require(flags == 0, "flags: not 0");
    mp_desc_queue& queue = queue_of(dq);
    bool blocks = false;
    // Again, since requests may have been posted or released after they were added.
    for (const StreamOperation& operation : queue.operations) {
      blocks |= operation.step != StreamStep::kPost;
      if (operation.step == StreamStep::kPost) {
        (void)engine().checked_in(operation.request, State::kPrepared);
      } else if (operation.request != nullptr) {
        mp_request& request = engine().checked(operation.request);
        if (!posted_in(queue, &request)) require_waitable(request);
      }
    }
    if (!queue.operations.empty()) engine().enqueue(stream, queue.operations, blocks);
    queue.operations.clear();
  });
}

}  // extern "C"
