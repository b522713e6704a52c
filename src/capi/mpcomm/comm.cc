// The COMM layer: messages that are sent when the receiver is ready, over libmp's API alone.
#include "ropewalk/compat/comm.h"

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capi/mpcomm/prepared.h"
#include "ropewalk/ropewalk.h"

namespace ropewalk::mpcomm {
namespace {

// A word that one other rank writes, in a cache line of its own.
struct alignas(64) Word {
  std::uint32_t value = 0;
};

// A number being put to another rank: it must stay until the put is complete.
class Number {
 public:
  explicit Number(std::uint32_t value) : value_(value) {
    if (mp_register(&value_, sizeof value_, &reg_) != MP_SUCCESS) throw std::bad_alloc();
  }
  ~Number() { (void)mp_deregister(&reg_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  std::uint32_t* value() noexcept { return &value_; }
  mp_reg_t* reg() noexcept { return &reg_; }

 private:
  std::uint32_t value_;
  mp_reg_t reg_ = nullptr;
};

class Layer {
 public:
  ~Layer() {
    if (window_ != nullptr) (void)mp_window_destroy(&window_);
  }
  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  int begin() {
    const auto size = static_cast<std::size_t>(mp_size());
    awaited_.resize(size);
    last_.resize(size);
    // Also kernels wait for these words.
    void* memory = nullptr;
    const int result = mp_kernel_memory(size * sizeof(Word), &memory);
    if (result != MP_SUCCESS) return result;
    told_ = {static_cast<Word*>(memory), size};
    return mp_window_create(told_.data(), told_.size_bytes(), &window_);
  }

  // ---- requests

  int track(int result, const mp_request_t& made, comm_request_t* req) {
    if (result != MP_SUCCESS) return result;
    live_.emplace(made, nullptr);
    *req = reinterpret_cast<comm_request_t>(made);
    return MP_SUCCESS;
  }

  int wait(comm_request_t* req) {
    if (req == nullptr) return EINVAL;
    if (*req == nullptr) return MP_SUCCESS;
    auto request = reinterpret_cast<mp_request_t>(*req);
    const auto owned = live_.extract(request);
    if (owned.empty()) return EINVAL;
    *req = nullptr;
    return mp_wait(&request);
  }

  int wait_on_stream(int count, comm_request_t* reqs, comm_stream_t stream) {
    std::vector<mp_request_t> given;
    for (int k = 0; k < count; ++k) {
      if (reqs[k] != nullptr) given.push_back(reinterpret_cast<mp_request_t>(reqs[k]));
    }
    const int result =
        mp_wait_all_on_stream(static_cast<std::uint32_t>(given.size()), given.data(), stream);
    if (result != MP_SUCCESS) return result;
    for (int k = 0; k < count; ++k) reqs[k] = nullptr;
    return MP_SUCCESS;
  }

  int progress() {
    int first = MP_SUCCESS;
    for (auto it = live_.begin(); it != live_.end();) {
      mp_request_t request = it->first;
      const int complete = mp_progress_all(1, &request);
      if (complete == 0) {
        ++it;
        continue;
      }
      const int result = complete < 0 ? -complete : mp_wait(&request);
      if (first == MP_SUCCESS) first = result;
      it = live_.erase(it);
    }
    return first;
  }

  int flush() {
    const auto all = std::exchange(live_, {});
    std::vector<mp_request_t> requests;
    for (const auto& [request, number] : all) requests.push_back(request);
    return mp_wait_all(static_cast<std::uint32_t>(requests.size()), requests.data());
  }

  // ---- readiness

  int send_ready(int rank, comm_request_t* req, bool on_stream, comm_stream_t stream) {
    if (!is_rank(rank) || req == nullptr) return EINVAL;
    std::uint64_t& last = last_[static_cast<std::size_t>(rank)];
    auto number = std::make_unique<Number>(static_cast<std::uint32_t>(last + 1));
    mp_request_t made = nullptr;
    const std::size_t displacement = static_cast<std::size_t>(mp_rank()) * sizeof(Word);
    const int size = sizeof(std::uint32_t);
    int result = MP_SUCCESS;
    if (on_stream) {
      result = mp_iput_on_stream(number->value(), size, number->reg(), rank, displacement, &window_,
                                 &made, MP_PUT_INLINE, stream);
    } else {
      result = mp_iput(number->value(), size, number->reg(), rank, displacement, &window_, &made,
                       MP_PUT_INLINE);
    }
    if (result != MP_SUCCESS) return result;
    ++last;
    live_.emplace(made, std::move(number));
    *req = on_stream ? reinterpret_cast<comm_request_t>(made) : nullptr;
    return MP_SUCCESS;
  }

  int wait_ready(int rank) {
    if (!is_rank(rank)) return EINVAL;
    const int result = mp_wait32(&told(rank), awaited(rank) + 1, MP_WAIT_GEQ);
    if (result == MP_SUCCESS) ++awaited(rank);
    return result;
  }

  int wait_ready_on_stream(int rank, comm_stream_t stream) {
    if (!is_rank(rank)) return EINVAL;
    const int result = mp_wait32_on_stream(&told(rank), awaited(rank) + 1, MP_WAIT_GEQ, stream);
    if (result == MP_SUCCESS) ++awaited(rank);
    return result;
  }

  int test_ready(int rank, int* ready) {
    if (!is_rank(rank) || ready == nullptr) return EINVAL;
    const std::uint32_t now = std::atomic_ref(told(rank)).load(std::memory_order_acquire);
    *ready = static_cast<std::int32_t>(now - (awaited(rank) + 1)) >= 0 ? 1 : 0;
    if (*ready != 0) {
      ++awaited(rank);
      return MP_SUCCESS;
    }
    const int result = mp_progress_all(0, nullptr);
    return result < 0 ? -result : MP_SUCCESS;
  }

  // ---- for kernels

  int prepare_wait_ready(int rank) {
    if (!is_rank(rank)) return EINVAL;
    const int result = prepared_.add_ready(&told(rank), awaited(rank) + 1);
    if (result == MP_SUCCESS) ++awaited(rank);
    return result;
  }

  int prepare_send(void* buffer, int bytes, comm_reg_t* reg, int rank, comm_request_t* req) {
    if (!prepared_.has_room_for_send()) return ENOMEM;
    mp_request_t made = nullptr;
    const int result =
        mp_send_prepare(buffer, bytes, rank, reinterpret_cast<mp_reg_t*>(reg), &made);
    if (result != MP_SUCCESS) return result;
    // Of a prepared send, which nobody else knows, this fails only where all does.
    const int described = prepared_.add_send(&made);
    return described != MP_SUCCESS ? described : track(MP_SUCCESS, made, req);
  }

  int prepare_wait(int count, const comm_request_t* reqs) {
    std::vector<mp_request_t> given;
    for (int k = 0; k < count; ++k) {
      if (reqs[k] != nullptr) given.push_back(reinterpret_cast<mp_request_t>(reqs[k]));
    }
    return prepared_.add_waits(given);
  }

  comm_dev_descs_t prepared() { return prepared_.take(); }

 private:
  [[nodiscard]] static bool is_rank(int rank) { return rank >= 0 && rank < mp_size(); }
  std::uint32_t& told(int rank) { return told_[static_cast<std::size_t>(rank)].value; }
  std::uint32_t& awaited(int rank) { return awaited_[static_cast<std::size_t>(rank)]; }

  std::span<Word> told_;  // by rank, which alone writes it: how often it has told
  mp_window_t window_ = nullptr;
  std::vector<std::uint32_t> awaited_;  // how often this rank has waited for it
  std::vector<std::uint64_t> last_;     // how often this rank has told it
  // Requests to be released, and what a put of them reads.
  std::unordered_map<mp_request_t, std::unique_ptr<Number>> live_;
  Prepared prepared_;
};

std::unique_ptr<Layer>& the_layer() {
  static std::unique_ptr<Layer> layer;
  return layer;
}

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

// Runs `body` with the layer.
template <typename Body>
int with_layer(Body&& body) noexcept {
  try {
    const std::lock_guard lock(mutex());
    if (the_layer() == nullptr) return EINVAL;
    return body(*the_layer());
  } catch (const std::exception&) {
    return ENOMEM;
  }
}

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && std::atoi(value) != 0;
}

// The registration of a buffer, made where there is none. Ropewalk's are ranges, nothing more.
int registered(void* buffer, std::size_t bytes, comm_reg_t* reg) {
  if (reg == nullptr) return EINVAL;
  return *reg != nullptr ? MP_SUCCESS : comm_register(buffer, bytes, reg);
}

using Start = int (*)(void*, int, int, mp_reg_t*, mp_request_t*, comm_stream_t);

int start(void* buffer, std::size_t bytes, comm_reg_t* reg, int rank, comm_request_t* req,
          comm_stream_t stream, Start begin) {
  if (req == nullptr || bytes > INT_MAX) return EINVAL;
  return with_layer([&](Layer& layer) {
    const int result = registered(buffer, bytes, reg);
    if (result != MP_SUCCESS) return result;
    mp_request_t made = nullptr;
    return layer.track(begin(buffer, static_cast<int>(bytes), rank,
                             reinterpret_cast<mp_reg_t*>(reg), &made, stream),
                       made, req);
  });
}

}  // namespace
}  // namespace ropewalk::mpcomm

using namespace ropewalk::mpcomm;  // NOLINT: this file is the edge

extern "C" {

int comm_use_comm(void) { return is_set("COMM_USE_COMM"); }
int comm_use_gdrdma(void) { return is_set("COMM_USE_GDRDMA"); }
int comm_use_async(void) { return is_set("COMM_USE_ASYNC"); }
int comm_use_gpu_comm(void) { return is_set("COMM_USE_GPU_COMM"); }

int comm_select_device(int rank) {
  int count = 0;
  if (rank < 0 || rwDeviceCount(&count) != rwSuccess || count == 0) return MP_HOST_ONLY;
  if (const char* const named = std::getenv("USE_GPU"); named != nullptr) return std::atoi(named);
  return rank % count;
}

int comm_begin(void) {
  try {
    const std::lock_guard lock(mutex());
    if (the_layer() != nullptr) return EINVAL;
    auto made = std::make_unique<Layer>();
    const int result = made->begin();
    if (result == MP_SUCCESS) the_layer() = std::move(made);
    return result;
  } catch (const std::exception&) {
    return ENOMEM;
  }
}

void comm_finalize(void) {
  (void)comm_flush();
  {
    const std::lock_guard lock(mutex());
    the_layer().reset();
  }
  mp_finalize();
}

int comm_register(void* buf, size_t size, comm_reg_t* reg) {
  return mp_register(buf, size, reinterpret_cast<mp_reg_t*>(reg));
}

int comm_deregister(comm_reg_t* reg) { return mp_deregister(reinterpret_cast<mp_reg_t*>(reg)); }

int comm_irecv_bytes(void* buf, size_t bytes, comm_reg_t* reg, int rank, comm_request_t* req) {
  return start(buf, bytes, reg, rank, req, nullptr,
               [](void* data, int size, int peer, mp_reg_t* of, mp_request_t* made, comm_stream_t) {
                 return mp_irecv(data, size, peer, of, made);
               });
}

int comm_isend_bytes(void* buf, size_t bytes, comm_reg_t* reg, int rank, comm_request_t* req) {
  return start(buf, bytes, reg, rank, req, nullptr,
               [](void* data, int size, int peer, mp_reg_t* of, mp_request_t* made, comm_stream_t) {
                 return mp_isend(data, size, peer, of, made);
               });
}

int comm_isend_bytes_on_stream(void* buf, size_t bytes, comm_reg_t* reg, int rank,
                               comm_request_t* req, comm_stream_t stream) {
  return start(buf, bytes, reg, rank, req, stream, mp_isend_on_stream);
}

int comm_send_ready(int rank, comm_request_t* req) {
  return with_layer([&](Layer& layer) { return layer.send_ready(rank, req, false, nullptr); });
}

int comm_send_ready_on_stream(int rank, comm_request_t* req, comm_stream_t stream) {
  return with_layer([&](Layer& layer) { return layer.send_ready(rank, req, true, stream); });
}

int comm_wait_ready(int rank) {
  return with_layer([&](Layer& layer) { return layer.wait_ready(rank); });
}

int comm_wait_ready_on_stream(int rank, comm_stream_t stream) {
  return with_layer([&](Layer& layer) { return layer.wait_ready_on_stream(rank, stream); });
}

int comm_test_ready(int rank, int* ready) {
  return with_layer([&](Layer& layer) { return layer.test_ready(rank, ready); });
}

int comm_wait(comm_request_t* req) {
  return with_layer([&](Layer& layer) { return layer.wait(req); });
}

int comm_wait_all(int count, comm_request_t* reqs) {
  if (count < 0 || (count > 0 && reqs == nullptr)) return EINVAL;
  return with_layer([&](Layer& layer) {
    int first = MP_SUCCESS;
    for (int k = 0; k < count; ++k) {
      const int result = layer.wait(&reqs[k]);
      if (first == MP_SUCCESS) first = result;
    }
    return first;
  });
}

int comm_wait_all_on_stream(int count, comm_request_t* reqs, comm_stream_t stream) {
  if (count < 0 || (count > 0 && reqs == nullptr)) return EINVAL;
  return with_layer([&](Layer& layer) { return layer.wait_on_stream(count, reqs, stream); });
}

int comm_prepare_wait_ready(int rank) {
  return with_layer([&](Layer& layer) { return layer.prepare_wait_ready(rank); });
}

int comm_prepare_isend_bytes(void* buf, size_t bytes, comm_reg_t* reg, int rank,
                             comm_request_t* req) {
  if (req == nullptr || bytes > INT_MAX) return EINVAL;
  return with_layer([&](Layer& layer) {
    const int result = registered(buf, bytes, reg);
    if (result != MP_SUCCESS) return result;
    return layer.prepare_send(buf, static_cast<int>(bytes), reg, rank, req);
  });
}

int comm_prepare_wait_all(int count, comm_request_t* reqs) {
  if (count < 0 || (count > 0 && reqs == nullptr)) return EINVAL;
  return with_layer([&](Layer& layer) { return layer.prepare_wait(count, reqs); });
}

comm_dev_descs_t comm_prepared_requests(void) {
  comm_dev_descs_t made = nullptr;
  (void)with_layer([&](Layer& layer) {
    made = layer.prepared();
    return MP_SUCCESS;
  });
  return made;
}

int comm_progress(void) {
  return with_layer([](Layer& layer) { return layer.progress(); });
}

int comm_flush(void) {
  return with_layer([](Layer& layer) { return layer.flush(); });
}

}  // extern "C"
