// Stands in for a libfabric 1.20 whose provider takes GPU memory: it is the libfabric of this
// machine, of which a provider (tcp;ofi_rxm, in tests) seems to offer FI_HMEM. The GPUs are those
// of the stand-in for CUDA (cuda.cc), whose memory the CPU cannot touch at its address: what is
// registered is mapped once more, as a NIC that has pinned it reaches it also after it was freed,
// and calls that are given its descriptor get that mapping. A call with GPU memory that was not
// registered, or with another descriptor, is refused.
//
// What it is to be like is told by RW_STAND_IN_LIBFABRIC when the library is first used, and by
// stand_in_libfabric_configure(), as a comma list; CODE is one of libfabric's (FI_EOPNOTSUPP 95):
//
//   version=1.17        of the library
//   no_hmem             no provider offers FI_HMEM
//   no_read             it offers no RMA reads with it
//   local               with FI_HMEM it wants host memory registered, too (FI_MR_LOCAL)
//   domain=CODE         a domain with FI_HMEM cannot be opened
//   cuda_option=CODE    FI_OPT_CUDA_API_PERMITTED is refused
//   p2p_option=CODE     FI_OPT_FI_HMEM_P2P is refused
//   address=CODE        registration of GPU memory by its address is refused
//   dma_buf=CODE        by a dma-buf descriptor
//   lose                what goes to registered GPU memory, or from it, is lost
//   lose_address        the same of what was registered by its address
//   lose_dma_buf        by a dma-buf descriptor
//   fail_read=CODE      RMA reads of GPU memory fail; that of a flush is one
//   fail_copy=CODE      RMA reads into GPU memory fail
//   word=CODE           RMA writes with data for the receiver are refused
//   damage              messages of more than 16 KiB come with a changed byte
//   busy=N              the next N of these two are to be tried again
//   busy_sends=N        the next N tagged sends from one buffer are to be tried again
//
// stand_in_libfabric_count(NAME) counts what was done: "address", "dma_buf" registrations, "open"
// of them, "refused" calls, "cuda_forbidden" endpoints, "p2p_required" endpoints, "flush" reads of
// GPU memory, "copy" reads into it, "write" RMA writes, "word" those of them with data for the
// receiver, "small" and "long" tagged messages (of up to 16 KiB, and longer ones).
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "stand_in.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kCudaPermitted = 10;                         // FI_OPT_CUDA_API_PERMITTED, 1.18
constexpr std::uint64_t kDmaBuf = std::uint64_t{1} << 40;  // FI_MR_DMABUF, 1.20
constexpr std::uintptr_t kPage = 4096;
constexpr std::size_t kSmallBytes = std::size_t{16} << 10U;

struct DmaBufRange {  // fi_mr_dmabuf
  int fd;
  std::uint64_t offset;
  std::size_t len;
  void* base_addr;
};

struct Faults {
  std::uint32_t version = FI_VERSION(1, 20);
  bool no_hmem = false;
  bool no_read = false;
  bool local = false;
  bool damage = false;
  bool lose_address = false;
  bool lose_dma_buf = false;
  int busy = 0;
  int busy_sends = 0;
  std::map<std::string, int> codes;
};

// Memory of a GPU that was registered.
struct Pinned {
  std::uintptr_t base = 0;  // where the GPU has it
  std::size_t bytes = 0;
  std::byte* alias = nullptr;  // where it is reached
  void* mapped = nullptr;
  std::size_t mapped_bytes = 0;
  void* descriptor = nullptr;
  fi_ops* ops = nullptr;  // the provider's own
  std::unique_ptr<fi_ops> own;
};

struct OfDomain {
  fi_ops_domain* ops = nullptr;
  fi_ops_mr* mr = nullptr;
  fi_ops_domain own{};
  fi_ops_mr own_mr{};
};

struct OfEndpoint {
  fi_ops_ep* ops = nullptr;
  fi_ops_rma* rma = nullptr;
  fi_ops_tagged* tagged = nullptr;
  fi_ops_ep own{};
  fi_ops_rma own_rma{};
  fi_ops_tagged own_tagged{};
};

struct OfFabric {
  fi_ops_fabric* ops = nullptr;
  fi_ops_fabric own{};
};

struct Real {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
  int (*gpu_attribute)(void*, int, std::uint64_t) = nullptr;
  int (*gpu_handle)(void*, std::uint64_t, std::size_t, int, unsigned long long) = nullptr;
};

struct State {
  std::mutex mutex;
  Faults faults;
  Real real;
  std::map<fid_fabric*, std::unique_ptr<OfFabric>> fabrics;
  std::map<fid_domain*, std::unique_ptr<OfDomain>> domains;
  std::map<fid_ep*, std::unique_ptr<OfEndpoint>> endpoints;
  std::map<fid*, std::unique_ptr<Pinned>> pinned;
  std::map<std::string, long> counts;
  std::vector<std::unique_ptr<std::byte[]>> damaged;  // copies that the provider sends from
};

void configure(Faults& faults, const std::string& text) {
  faults = {};
  stand_in::for_each_entry(text, [&](const std::string& name, const std::string& value) {
    if (name == "version") {
      const std::size_t dot = value.find('.');
      const auto number = [](const std::string& digits) {
        return static_cast<std::uint32_t>(std::stoul(digits));
      };
      faults.version = FI_VERSION(number(value.substr(0, dot)), number(value.substr(dot + 1)));
    } else if (name == "no_hmem") {
      faults.no_hmem = true;
    } else if (name == "no_read") {
      faults.no_read = true;
    } else if (name == "local") {
      faults.local = true;
    } else if (name == "lose") {
      faults.lose_address = faults.lose_dma_buf = true;
    } else if (name == "lose_address") {
      faults.lose_address = true;
    } else if (name == "lose_dma_buf") {
      faults.lose_dma_buf = true;
    } else if (name == "busy") {
      faults.busy = std::stoi(value);
    } else if (name == "damage") {
      faults.damage = true;
    } else if (name == "busy_sends") {
      faults.busy_sends = std::stoi(value);
    } else {
      faults.codes[name] = std::stoi(value);
    }
  });
}

State* make_state() {
  auto* made = new State;
  void* fabric = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  void* cuda = dlopen(RW_STAND_IN_CUDA, RTLD_NOW | RTLD_LOCAL);
  if (fabric == nullptr || cuda == nullptr) {
    std::fprintf(stderr, "stand-in libfabric: %s\n", dlerror());
    std::abort();
  }
  stand_in::find(fabric, made->real.getinfo, "fi_getinfo");
  stand_in::find(fabric, made->real.freeinfo, "fi_freeinfo");
  stand_in::find(fabric, made->real.dupinfo, "fi_dupinfo");
  stand_in::find(fabric, made->real.fabric, "fi_fabric");
  stand_in::find(fabric, made->real.version, "fi_version");
  stand_in::find(fabric, made->real.strerror, "fi_strerror");
  stand_in::find(cuda, made->real.gpu_attribute, "cuPointerGetAttribute");
  stand_in::find(cuda, made->real.gpu_handle, "cuMemGetHandleForAddressRange");
  const char* text = std::getenv("RW_STAND_IN_LIBFABRIC");
  configure(made->faults, text == nullptr ? "" : text);
  return made;
}

// Never destroyed: the libfabric below has threads and exit handlers.
State& state() {
  static State* const made = make_state();
  return *made;
}
const Real& real() { return state().real; }

// 0: it does not fail.
int code_of(const char* name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.faults.codes.find(name);
  return found == s.faults.codes.end() ? 0 : found->second;
}

void count(const char* name, long by = 1) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.counts[name] += by;
}

bool on_gpu(const void* data) {
  unsigned type = 0;
  constexpr int kMemoryType = 2;
  return real().gpu_attribute(&type, kMemoryType, reinterpret_cast<std::uint64_t>(data)) == 0 &&
         type == 2;
}

// Where the provider reaches `bytes` at `data`.
// @return false: that call is to be refused
bool reach(const void*& data, std::size_t bytes, void* descriptor) {
  State& s = state();
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  bool local = false;
  {
    const std::lock_guard lock(s.mutex);
    local = s.faults.local;
    for (const auto& [region, pinned] : s.pinned) {
      if (pinned->descriptor != descriptor) continue;
      if (address < pinned->base || address - pinned->base > pinned->bytes ||
          bytes > pinned->bytes - (address - pinned->base)) {
        break;
      }
      data = pinned->alias + (address - pinned->base);
      return true;
    }
  }
  if (bytes == 0 || (!on_gpu(data) && !(local && descriptor == nullptr))) return true;
  count("refused");
  return false;
}

// All pieces of a message.
bool reach_all(std::vector<iovec>& pieces, void* const* descriptors) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const void* data = pieces[i].iov_base;
    if (!reach(data, pieces[i].iov_len, descriptors == nullptr ? nullptr : descriptors[i])) {
      return false;
    }
    pieces[i].iov_base = const_cast<void*>(data);
  }
  return true;
}

OfEndpoint& of(fid_ep* endpoint) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return *s.endpoints.at(endpoint);
}
OfDomain& of(fid_domain* domain) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return *s.domains.at(domain);
}

// ---- endpoints ----------------------------------------------------------------------------------

int set_option(fid_t object, int level, int option, const void* value, std::size_t bytes) {
  auto* const endpoint = reinterpret_cast<fid_ep*>(object);
  if (option == kCudaPermitted) {
    {
      State& s = state();
      const std::lock_guard lock(s.mutex);
      if (FI_VERSION_LT(s.faults.version, FI_VERSION(1, 18))) return -FI_ENOPROTOOPT;
    }
    if (bytes != sizeof(bool) || *static_cast<const bool*>(value)) return -FI_EINVAL;
    if (const int code = code_of("cuda_option"); code != 0) return -code;
    count("cuda_forbidden");
    return 0;
  }
  if (option == FI_OPT_FI_HMEM_P2P) {
    if (bytes != sizeof(int) || *static_cast<const int*>(value) != FI_HMEM_P2P_REQUIRED) {
      return -FI_EINVAL;
    }
    if (const int code = code_of("p2p_option"); code != 0) return -code;
    count("p2p_required");
    return 0;
  }
  return of(endpoint).ops->setopt(object, level, option, value, bytes);
}

// Reads from GPU memory, which they tell by the key of the region.
bool reads_gpu(std::uint64_t key) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& [region, pinned] : s.pinned) {
    if (reinterpret_cast<fid_mr*>(region)->key == key) return true;
  }
  return false;
}

bool is_busy(int Faults::*times) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.faults.*times > 0 && (s.faults.*times)-- > 0;
}

ssize_t read_rma(fid_ep* endpoint, void* data, std::size_t bytes, void* descriptor, fi_addr_t from,
                 std::uint64_t address, std::uint64_t key, void* context) {
  const void* reached = data;
  if (!reach(reached, bytes, descriptor)) return -FI_EFAULT;
  const bool into = reached != data;
  const bool out = reads_gpu(key);
  if ((into || out) && is_busy(&Faults::busy)) return -FI_EAGAIN;
  if (into) {
    if (const int code = code_of("fail_copy"); code != 0) return -code;
  }
  if (out) {
    if (const int code = code_of("fail_read"); code != 0) return -code;
  }
  const ssize_t result = of(endpoint).rma->read(endpoint, const_cast<void*>(reached), bytes,
                                                descriptor, from, address, key, context);
  if (result == 0 && into) count("copy");
  if (result == 0 && out) count("flush");
  return result;
}

// A message that is to be damaged is sent from a copy.
void damage(std::vector<iovec>& pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.faults.damage || bytes <= kSmallBytes) return;
  std::byte* const copy = s.damaged.emplace_back(new std::byte[bytes]).get();
  std::byte* end = copy;
  for (const iovec& piece : pieces) {
    std::memcpy(end, piece.iov_base, piece.iov_len);
    end += piece.iov_len;
  }
  copy[bytes / 2] ^= std::byte{1};
  pieces = {{copy, bytes}};
}

ssize_t write_message(fid_ep* endpoint, const fi_msg_rma* message, std::uint64_t flags) {
  std::vector<iovec> pieces(message->msg_iov, message->msg_iov + message->iov_count);
  if (!reach_all(pieces, message->desc)) return -FI_EFAULT;
  damage(pieces);
  fi_msg_rma reached = *message;
  reached.msg_iov = pieces.data();
  reached.iov_count = pieces.size();
  const bool word = (flags & FI_REMOTE_CQ_DATA) != 0;
  if (word) {
    if (const int code = code_of("word"); code != 0) return -code;
  }
  const ssize_t result = of(endpoint).rma->writemsg(endpoint, &reached, flags);
  if (result == 0) count("write");
  if (result == 0 && word) count("word");
  return result;
}

ssize_t receive_tagged(fid_ep* endpoint, void* data, std::size_t bytes, void* descriptor,
                       fi_addr_t from, std::uint64_t tag, std::uint64_t ignored, void* context) {
  const void* reached = data;
  if (!reach(reached, bytes, descriptor)) return -FI_EFAULT;
  return of(endpoint).tagged->recv(endpoint, const_cast<void*>(reached), bytes, descriptor, from,
                                   tag, ignored, context);
}

ssize_t counted(ssize_t result, std::size_t bytes) {
  if (result == 0) count(bytes > kSmallBytes ? "long" : "small");
  return result;
}

ssize_t send_tagged(fid_ep* endpoint, const void* data, std::size_t bytes, void* descriptor,
                    fi_addr_t to, std::uint64_t tag, void* context) {
  if (!reach(data, bytes, descriptor)) return -FI_EFAULT;
  if (is_busy(&Faults::busy_sends)) return -FI_EAGAIN;
  return counted(of(endpoint).tagged->send(endpoint, data, bytes, descriptor, to, tag, context),
                 bytes);
}

ssize_t send_tagged_pieces(fid_ep* endpoint, const iovec* from, void** descriptors,
                           std::size_t number, fi_addr_t to, std::uint64_t tag, void* context) {
  std::vector<iovec> pieces(from, from + number);
  if (!reach_all(pieces, descriptors)) return -FI_EFAULT;
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  damage(pieces);
  return counted(of(endpoint).tagged->sendv(endpoint, pieces.data(), descriptors, pieces.size(), to,
                                            tag, context),
                 bytes);
}

ssize_t inject_tagged(fid_ep* endpoint, const void* data, std::size_t bytes, fi_addr_t to,
                      std::uint64_t tag) {
  if (on_gpu(data)) {
    count("refused");
    return -FI_EFAULT;
  }
  if (is_busy(&Faults::busy_sends)) return -FI_EAGAIN;
  return counted(of(endpoint).tagged->inject(endpoint, data, bytes, to, tag), bytes);
}

// ---- registration -------------------------------------------------------------------------------

int close_region(fid_t object) {
  State& s = state();
  std::unique_ptr<Pinned> pinned;
  {
    const std::lock_guard lock(s.mutex);
    const auto found = s.pinned.find(object);
    pinned = std::move(found->second);
    s.pinned.erase(found);
  }
  object->ops = pinned->ops;
  const int result = object->ops->close(object);
  // What had begun to come goes on to this address (libfabric 2.5's tcp then ends the process if it
  // is unmapped), and to no GPU any more.
  mmap(pinned->mapped, pinned->mapped_bytes, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  count("open", -1);
  return result;
}

int register_host(fid_t object, const void* data, std::size_t bytes, std::uint64_t access,
                  std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** region,
                  void* context) {
  auto* const domain = reinterpret_cast<fid_domain*>(object);
  if (on_gpu(data)) {
    count("refused");
    return -FI_EFAULT;
  }
  return of(domain).mr->reg(object, data, bytes, access, offset, key, flags, region, context);
}

int register_kind(fid_t object, const fi_mr_attr* attributes, std::uint64_t flags,
                  fid_mr** region) {
  auto* const domain = reinterpret_cast<fid_domain*>(object);
  if (attributes->iface != FI_HMEM_CUDA || attributes->iov_count != 1) return -FI_EINVAL;
  State& s = state();
  const bool by_dma_buf = (flags & kDmaBuf) != 0;
  int descriptor = -1;
  auto pinned = std::make_unique<Pinned>();
  std::uint64_t offset = 0;
  bool lose = false;
  {
    const std::lock_guard lock(s.mutex);
    lose = by_dma_buf ? s.faults.lose_dma_buf : s.faults.lose_address;
    if (by_dma_buf && FI_VERSION_LT(s.faults.version, FI_VERSION(1, 20))) std::abort();
  }
  if (by_dma_buf) {
    if (const int code = code_of("dma_buf"); code != 0) return -code;
    // The first word of both.
    const auto& range = *reinterpret_cast<const DmaBufRange*>(attributes->mr_iov);
    descriptor = fcntl(range.fd, F_DUPFD_CLOEXEC, 3);
    offset = range.offset;
    pinned->base = reinterpret_cast<std::uintptr_t>(range.base_addr) + range.offset;
    pinned->bytes = range.len;
  } else {
    if (const int code = code_of("address"); code != 0) return -code;
    pinned->base = reinterpret_cast<std::uintptr_t>(attributes->mr_iov->iov_base);
    pinned->bytes = attributes->mr_iov->iov_len;
    const std::uintptr_t begin = pinned->base / kPage * kPage;
    const std::uintptr_t end = (pinned->base + pinned->bytes + kPage - 1) / kPage * kPage;
    offset = pinned->base - begin;
    int ordinal = -1;
    constexpr int kOrdinal = 9;
    if (real().gpu_attribute(&ordinal, kOrdinal, pinned->base) != 0 ||
        ordinal != attributes->device.cuda ||
        real().gpu_handle(&descriptor, begin, end - begin, 1, 0) != 0) {
      return -FI_EFAULT;
    }
  }
  // The stand-in's descriptor stands where a dma-buf would begin.
  const off_t place = lseek(descriptor, 0, SEEK_CUR) + static_cast<off_t>(offset);
  const auto within = static_cast<std::size_t>(place) % kPage;
  pinned->mapped_bytes = pinned->bytes + within;
  pinned->mapped =
      mmap(nullptr, pinned->mapped_bytes, PROT_READ | PROT_WRITE, lose ? MAP_PRIVATE : MAP_SHARED,
           descriptor, place - static_cast<off_t>(within));
  // A private mapping sees what is written to the file before its pages are first written.
  if (lose && pinned->mapped != MAP_FAILED) {
    auto* const bytes = static_cast<volatile char*>(pinned->mapped);
    for (std::size_t at = 0; at < pinned->mapped_bytes; at += kPage) bytes[at] = bytes[at];
  }
  close(descriptor);
  if (pinned->mapped == MAP_FAILED) return -FI_ENOMEM;
  pinned->alias = static_cast<std::byte*>(pinned->mapped) + within;
  const int result =
      of(domain).mr->reg(object, pinned->alias, pinned->bytes, attributes->access,
                         attributes->offset, attributes->requested_key, 0, region, nullptr);
  if (result != 0) {
    munmap(pinned->mapped, pinned->mapped_bytes);
    return result;
  }
  fid* const made = &(*region)->fid;
  pinned->descriptor = (*region)->mem_desc;
  pinned->ops = made->ops;
  pinned->own = std::make_unique<fi_ops>(*made->ops);
  pinned->own->close = close_region;
  made->ops = pinned->own.get();
  count(by_dma_buf ? "dma_buf" : "address");
  count("open");
  const std::lock_guard lock(s.mutex);
  s.pinned[made] = std::move(pinned);
  return 0;
}

// ---- objects ------------------------------------------------------------------------------------

// As the provider itself offers it.
fi_info* without_gpus(const fi_info* info) {
  fi_info* plain = real().dupinfo(info);
  plain->caps &= ~FI_HMEM;
  if (plain->domain_attr != nullptr) {
    plain->domain_attr->mr_mode &= ~FI_MR_HMEM;
    plain->domain_attr->mr_mode &= ~FI_MR_LOCAL;
  }
  return plain;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  fi_info* plain = without_gpus(info);
  const int result = of(domain).ops->endpoint(domain, plain, endpoint, context);
  real().freeinfo(plain);
  if (result != 0) return result;
  auto made = std::make_unique<OfEndpoint>();
  fid_ep* const opened = *endpoint;
  made->ops = opened->ops;
  made->rma = opened->rma;
  made->tagged = opened->tagged;
  made->own = *opened->ops;
  made->own.setopt = set_option;
  made->own_rma = *opened->rma;
  made->own_rma.read = read_rma;
  made->own_rma.writemsg = write_message;
  made->own_tagged = *opened->tagged;
  made->own_tagged.recv = receive_tagged;
  made->own_tagged.send = send_tagged;
  made->own_tagged.sendv = send_tagged_pieces;
  made->own_tagged.inject = inject_tagged;
  opened->ops = &made->own;
  opened->rma = &made->own_rma;
  opened->tagged = &made->own_tagged;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.endpoints[opened] = std::move(made);
  return 0;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  State& s = state();
  fi_ops_fabric* ops = nullptr;
  {
    const std::lock_guard lock(s.mutex);
    ops = s.fabrics.at(fabric)->ops;
  }
  if ((info->caps & FI_HMEM) == 0) return ops->domain(fabric, info, domain, context);
  if (const int code = code_of("domain"); code != 0) return -code;
  fi_info* plain = without_gpus(info);
  const int result = ops->domain(fabric, plain, domain, context);
  real().freeinfo(plain);
  if (result != 0) return result;
  auto made = std::make_unique<OfDomain>();
  fid_domain* const opened = *domain;
  made->ops = opened->ops;
  made->mr = opened->mr;
  made->own = *opened->ops;
  made->own.endpoint = open_endpoint;
  made->own_mr = *opened->mr;
  made->own_mr.reg = register_host;
  made->own_mr.regattr = register_kind;
  opened->ops = &made->own;
  opened->mr = &made->own_mr;
  const std::lock_guard lock(s.mutex);
  s.domains[opened] = std::move(made);
  return 0;
}

}  // namespace

EXPORT void stand_in_libfabric_configure(const char* text) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  configure(s.faults, text);
}

EXPORT long stand_in_libfabric_count(const char* name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.counts[name];
}

EXPORT uint32_t fi_version(void) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.faults.version;
}

EXPORT void fi_freeinfo(fi_info* info) { real().freeinfo(info); }
EXPORT fi_info* fi_dupinfo(const fi_info* info) { return real().dupinfo(info); }
EXPORT const char* fi_strerror(int code) { return real().strerror(code); }

EXPORT int fi_getinfo(uint32_t /*version*/, const char* node, const char* service, uint64_t flags,
                      const fi_info* hints, fi_info** found) {
  Faults faults;
  {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    faults = s.faults;
  }
  const bool gpus = hints != nullptr && (hints->caps & FI_HMEM) != 0;
  if (!gpus) return real().getinfo(real().version(), node, service, flags, hints, found);
  if (faults.no_hmem || (hints->domain_attr->mr_mode & FI_MR_HMEM) == 0) return -FI_ENODATA;
  fi_info* plain = without_gpus(hints);
  const int result = real().getinfo(real().version(), node, service, flags, plain, found);
  real().freeinfo(plain);
  if (result != 0) return result;
  for (fi_info* info = *found; info != nullptr; info = info->next) {
    info->caps |= FI_HMEM;
    if (faults.no_read) info->caps &= ~(FI_READ | FI_REMOTE_READ);
    info->domain_attr->mr_mode |= FI_MR_HMEM;
    if (faults.local) info->domain_attr->mr_mode |= FI_MR_LOCAL;
  }
  return 0;
}

EXPORT int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  const int result = real().fabric(attributes, fabric, context);
  if (result != 0) return result;
  auto made = std::make_unique<OfFabric>();
  made->ops = (*fabric)->ops;
  made->own = *made->ops;
  made->own.domain = open_domain;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  // The library gives one fabric to several; it may be one of ours already.
  auto& known = s.fabrics[*fabric];
  if (known != nullptr && (*fabric)->ops == &known->own) return 0;
  (*fabric)->ops = &made->own;
  known = std::move(made);
  return 0;
}
