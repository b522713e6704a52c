// A fabric endpoint with its domain and completion queue, which connections share.
//
// Endpoints are not connected: each can send to any endpoint whose address it has. What a small
// message is for is in its header (wire.h); an endpoint gives it to the connection of that number.
// Small messages come into buffers of the endpoint's that are always posted, so that none waits in
// the provider for a receive, and none can be too long.
//
// Threads: all but the constructor and the destructor with `mutex` held. So the provider is asked
// for FI_THREAD_DOMAIN, which lets it leave out its own locks. Progress is made by every call of a
// connection that waits, whichever model the provider has.
//
// GPU memory: an endpoint of a device with FI_HMEM takes it if the provider promises not to call
// CUDA, which may wait for kernels that wait for messages. It is registered as memory of a GPU, or
// by a dma-buf descriptor, and nothing of it is touched by the CPU: what has to be copied from or
// to it goes through the NIC, from this endpoint to itself.
#pragma once

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "transport/messaging/ofi/devices.h"
#include "transport/messaging/ofi/shared_file.h"
#include "transport/messaging/ofi/wire.h"
#include "transport/transport.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::transport::ofi {

/// One operation of the provider's. It lives until `finished` was called, or the endpoint ended.
struct Operation {
  fi_context2 context{};  // first: the provider gives back its address
  void* owner = nullptr;
  /// `error` is empty on success.
  void (*finished)(Operation& operation, const std::string& error) = nullptr;
  bool under_way = false;
};

/// Closes an object of libfabric's.
template <typename T>
struct CloseFid {
  void operator()(T* object) const noexcept {
    if (object != nullptr) fi_close(&object->fid);
  }
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid<T>>;

/// The regions that are bound to an endpoint (FI_MR_ENDPOINT) and open: it cannot be closed before
/// they are.
using BoundRegions = std::set<fid_mr*>;

/// Closes a region, unless its endpoint has done so. With the endpoint's mutex held.
struct CloseRegion {
  BoundRegions* bound = nullptr;  ///< null: not bound to an endpoint
  void operator()(fid_mr* region) const noexcept {
    if (bound == nullptr || bound->erase(region) > 0) fi_close(&region->fid);
  }
};

/// Memory made known to the provider. Must not outlive its endpoint.
struct Region {
  std::unique_ptr<fid_mr, CloseRegion> mr;
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  window::Gpu* gpu = nullptr;  ///< whose memory it is; null: host memory
  // As the provider has them; copies, since an endpoint that was closed has closed its regions.
  void* descriptor = nullptr;
  std::uint64_t key = 0;
  void close() noexcept {
    mr.reset();
    descriptor = nullptr;
  }
};

/// How a GPU's memory is made known to the provider.
enum class Means : std::uint8_t {
  kAddress,  ///< as memory of CUDA at an address
  kDmaBuf,   ///< by a descriptor of it
};
/// "by address", "by dma-buf"
std::string_view name(Means means) noexcept;

/// What an endpoint calls: a connection's end.
class Member {
 public:
  virtual ~Member() = default;
  [[nodiscard]] virtual std::uint32_t proof() const noexcept = 0;
  virtual void on_message(const Header& header, std::span<const std::byte> payload) = 0;
  /// This member's receive with that ticket has been written, with so many bytes.
  virtual void on_written(std::uint32_t ticket, std::uint64_t bytes) = 0;
  /// The endpoint was closed for `reason`: no operation is in progress any more, none can start.
  virtual void on_retired(const std::string& reason) = 0;
  /// Another end waits for its peer, which may be this one.
  virtual void on_wait() = 0;
};

class Endpoint {
 public:
  /// What is known of GPUs on a device, for all of its endpoints. Threads: any.
  struct KnownGpus {
    struct Gpu {
      // Of the trial of each way, once made: why it failed, empty if not.
      std::array<std::optional<std::string>, 2> wrong;
      std::optional<Means> last;  // by which memory was registered
    };
    Mutex mutex;  // also while a trial is made; after an endpoint's
    std::map<int, Gpu> by_ordinal RW_GUARDED_BY(mutex);
  };
  /// GPU memory, where the device has it.
  struct Gpus {
    std::shared_ptr<window::DriverCuda> cuda;  ///< null: none is taken
    bool verify = true;                        ///< try each GPU by a pattern
    std::shared_ptr<KnownGpus> known = std::make_shared<KnownGpus>();
  };
  /// @throws Error kSystem naming the call of libfabric's
  Endpoint(std::shared_ptr<const Library> library, const Device& device, Gpus gpus);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  Mutex mutex;

  /// Random; the same nowhere else.
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  /// The endpoint of that id, if this process has it. Providers use the memory of an endpoint of
  /// the same process directly, also after it was closed: its senders keep it alive.
  static std::shared_ptr<Endpoint> of_this_process(std::uint64_t id);
  /// Makes one that of_this_process() finds.
  static std::shared_ptr<Endpoint> make(std::shared_ptr<const Library> library,
                                        const Device& device, Gpus gpus);

  /// The one that all of this process share on that device; made if there is none that is open.
  static std::shared_ptr<Endpoint> of_whole_process(std::shared_ptr<const Library> library,
                                                    const Device& device);

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] std::span<const std::byte> address() const noexcept { return address_; }
  /// @throws Error kSystem when the provider cannot use it
  fi_addr_t peer(std::span<const std::byte> address) RW_REQUIRES(mutex);

  /// @return its number, which is never given twice
  std::uint32_t add(Member& member) RW_REQUIRES(mutex);
  void remove(std::uint32_t number) RW_REQUIRES(mutex);

  enum class Sent {
    kThrough,   ///< the source is free, and the provider needs no further call
    kUnderWay,  ///< the operation will be finished
    kNotNow,
  };
  /// Sends header and payload, which are copied. `operation` may be null: then its completion is
  /// not reported.
  /// @throws Error kPeerLost in the provider's words
  Sent send(fi_addr_t to, const Header& header, std::span<const iovec> payload,
            Operation* operation) RW_REQUIRES(mutex);

  /// Of a send that was copied: nobody waits for its end any more.
  void forget(const Operation& operation) RW_REQUIRES(mutex);

  struct Remote {
    fi_addr_t peer;
    std::uint64_t address;
    std::uint64_t key;
  };
  /// Starts to write.
  /// @param confirmed  the operation is finished when the bytes are there
  /// @param word       word_of() what is written, for the receiver; 0: the write tells it nothing
  /// @return false: not now; or, with a word, that writes_tell() is no longer so
  bool write(const Remote& to, std::span<const iovec> from, std::span<void*> descriptors,
             bool confirmed, std::uint64_t word, Operation& operation) RW_REQUIRES(mutex);
  /// Whether write() takes a word.
  [[nodiscard]] bool writes_tell() const noexcept { return writes_tell_; }

  /// Tickets for `count` receives of a member, which follow each other.
  /// @return the first; never 0
  std::uint32_t issue_tickets(Member& member, std::size_t count) RW_REQUIRES(mutex);
  /// Nothing is written for that ticket any more.
  void withdraw_ticket(std::uint32_t ticket) RW_REQUIRES(mutex) { tickets_.erase(ticket); }
  /// Tagged messages of a number that this endpoint gave (next_tag).
  bool send_tagged(fi_addr_t to, std::uint64_t tag, std::span<const iovec> from,
                   std::span<void*> descriptors, Operation& operation) RW_REQUIRES(mutex);
  bool receive_tagged(std::uint64_t tag, void* data, std::size_t bytes, void* descriptor,
                      Operation& operation) RW_REQUIRES(mutex);
  [[nodiscard]] std::uint64_t next_tag() RW_REQUIRES(mutex);
  /// Asks the provider to end a receive; it is finished with an error, or as if not asked.
  void cancel(Operation& operation) RW_REQUIRES(mutex);

  /// @throws Error kSystem with the provider's words and the limit of locked memory
  Region register_memory(void* data, std::size_t bytes, std::uint64_t access) RW_REQUIRES(mutex);

  [[nodiscard]] bool takes_gpu_memory() const noexcept { return gpus_.cuda != nullptr; }
  /// @pre takes_gpu_memory()
  [[nodiscard]] window::DriverCuda& cuda() const noexcept { return *gpus_.cuda; }
  /// Registers memory of a GPU by its address, and if that is refused or moved a pattern wrong, by
  /// a dma-buf descriptor; the other way round where one is given. Waits for the trial of a GPU's
  /// first memory.
  /// @throws Error kSystem with the words of both
  Region register_gpu_memory(const window::GpuMemory& memory, std::uint64_t access,
                             const DmaBuf* given) RW_REQUIRES(mutex);
  /// Whether there is a way for memory of that GPU: tries each until one is right.
  /// @throws Error kSystem as above
  void check_gpu(window::Gpu& gpu) RW_REQUIRES(mutex);
  /// How memory of that GPU was registered last.
  [[nodiscard]] std::optional<Means> means_of(const window::Gpu& gpu) const;
  /// Registers by one way alone.
  /// @return why it was refused; empty: `made` is registered
  std::string register_by(Means means, const window::GpuMemory& memory, std::uint64_t access,
                          const DmaBuf* given, Region& made) RW_REQUIRES(mutex);

  /// Through the NIC, to and from this endpoint's own memory. `told` is finished, and the host's
  /// memory free from the start.
  /// @return false: not now
  bool copy_to_gpu(const Region& region, void* to, std::span<const std::byte> from, Operation& told)
      RW_REQUIRES(mutex);
  /// Reads some of the region's bytes at `from`: what was written before is then in the GPU's
  /// memory.
  bool flush_gpu(const Region& region, const void* from, std::size_t bytes, Operation& told)
      RW_REQUIRES(mutex);
  /// For trials: `local` is registered in a region, whose descriptor it needs.
  bool read(const Remote& from, void* local, std::size_t bytes, void* descriptor,
            Operation& operation) RW_REQUIRES(mutex);
  /// This endpoint as its own peer. @pre takes_gpu_memory()
  [[nodiscard]] fi_addr_t self() const noexcept { return self_; }
  /// Memory that the provider reads and writes here must be registered.
  [[nodiscard]] bool needs_local() const noexcept { return mr_local_; }
  /// The address and key with which a peer writes to `data` in a region.
  [[nodiscard]] std::uint64_t remote_address(const Region& region, const void* data) const noexcept;
  [[nodiscard]] std::size_t max_bytes() const noexcept { return max_bytes_; }

  /// Takes what has come and what has been finished.
  /// @return whether there was any
  bool progress() RW_REQUIRES(mutex);

  /// As progress(), and polls the side channels of all connections.
  void progress_all() RW_REQUIRES(mutex);

  /// Closes it for good: the only method to end operations that a provider does not release.
  void retire(const std::string& reason) RW_REQUIRES(mutex);
  [[nodiscard]] bool retired() const RW_REQUIRES(mutex) { return endpoint_ == nullptr; }

 private:
  struct Buffer;
  struct Block;
  void open();
  void close_all() noexcept;
  void forbid_cuda(fid_ep* endpoint);
  void close_endpoint() noexcept;
  Region make_region(void* data, std::size_t bytes, std::uint64_t access);
  /// Registers with keys of ours until one is free.
  /// @return libfabric's error; 0: `made` is owned, and bound
  int try_region(const std::function<int(std::uint64_t, fid_mr**)>& call, Region& made);
  int try_gpu_region(const window::GpuMemory& memory, std::uint64_t access, const DmaBuf* by,
                     Region& made);
  /// Tries `means` for the GPU's memory, unless it was tried. @return why it is not used, or empty
  std::string trial_of(window::Gpu& gpu, Means means) RW_REQUIRES(mutex);
  void set_means(const window::Gpu& gpu, Means means);
  /// The error that names why each means failed.
  [[nodiscard]] Error no_registration(const std::string& what,
                                      const std::array<std::string, 2>& words) const;
  Buffer* take_buffer() RW_REQUIRES(mutex);
  void make_block(std::size_t count, bool receiving) RW_REQUIRES(mutex);
  void post(Buffer& buffer) RW_REQUIRES(mutex);
  /// What is unposted.
  void post_again() RW_REQUIRES(mutex);
  void deliver(Buffer& buffer, std::size_t bytes) RW_REQUIRES(mutex);
  void take_word(std::uint64_t word) RW_REQUIRES(mutex);
  void finish(void* context, std::size_t bytes, const std::string& error) RW_REQUIRES(mutex);
  void take_error() RW_REQUIRES(mutex);
  // Called by finish(), so with the mutex held.
  static void buffer_received(Operation& operation, const std::string& error) RW_NO_THREAD_ANALYSIS;
  static void buffer_sent(Operation& operation, const std::string& error) RW_NO_THREAD_ANALYSIS;
  /// @return false for "not now"; throws for anything else
  bool accepted(ssize_t result, const char* call);

  std::shared_ptr<const Library> library_;
  const Device device_;
  std::uint64_t id_ = 0;
  bool mr_local_ = false;
  bool virtual_addresses_ = false;
  bool chosen_keys_ = false;  // by us
  bool bound_regions_ = false;
  bool descriptors_ = false;  // some of the memory is registered, so that calls have descriptors
  fi_addr_t self_ = FI_ADDR_UNSPEC;
  Gpus gpus_;
  std::size_t max_bytes_ = 0;
  std::size_t inject_bytes_ = 0;
  std::uint64_t key_limit_ = 0;
  std::uint64_t next_key_ = 1;
  std::uint32_t next_tag_ = 1;
  std::uint32_t next_number_ = 1;
  bool writes_tell_ = false;
  std::uint32_t next_ticket_;       // from a random one on: a stranger does not know it
  std::size_t received_bytes_ = 0;  // of the receive that is being finished

  // Closed in the order of close_all().
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_cq> queue_;
  Fid<fid_av> addresses_;
  Fid<fid_ep> endpoint_;
  SharedFile file_;  // of provider shm
  BoundRegions bound_;
  std::vector<std::byte> address_;
  std::map<std::string, fi_addr_t> peers_ RW_GUARDED_BY(mutex);  // by the bytes of their addresses
  std::map<std::uint32_t, Member*> members_ RW_GUARDED_BY(mutex);
  std::unordered_map<std::uint32_t, Member*> tickets_ RW_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Block>> blocks_;
  std::size_t send_buffers_ = 0;
  std::vector<Buffer*> free_ RW_GUARDED_BY(mutex);  // for sends
  // For receives: taken, or refused by the provider.
  std::vector<Buffer*> unposted_ RW_GUARDED_BY(mutex);
  std::vector<Buffer*> posting_ RW_GUARDED_BY(mutex);  // scratch of post_again()
  std::vector<std::byte> scratch_ RW_GUARDED_BY(mutex);
};

}  // namespace ropewalk::transport::ofi
