// Stands in for a libfabric whose provider demands what those of NICs demand of memory and those in
// software do not (the memory registration modes of fi_mr(3)), and that has NICs. It wraps the
// other stand-in (libfabric.cc), and with it the libfabric of this machine, of which a provider
// (tcp;ofi_rxm, in tests) does the work in its own plain way: offsets, keys that the user chooses.
//
// What it is to be like is told by RW_STRICT_LIBFABRIC when the library is first used, and by
// strict_libfabric_configure(), as a comma list:
//
//   local         each buffer that is given to it is registered, and its descriptor given
//   virtual       a peer's memory is addressed as the peer does, else from the begin of its region
//   allocated     what is registered is mapped
//   provider_key  it chooses the keys, else the user does: not one twice
//   key_bytes=N   the user's keys have so many bytes
//   endpoint      regions are bound to an endpoint, enabled, and closed before the endpoint
//   raw, mmu_notify, rma_event, prefix   further modes that it demands
//   unasked       it is listed to who does not offer its modes, too
//   contexts      operations' contexts are its own until they end, which it writes to
//   busy_regions=N  the next N registrations find their key taken
//   fail_bind=N   the next N regions cannot be bound
//   nic=NAME/PCI/GBITS/ADDRESS[/down]    one of its NICs; of PCI "-" it says nothing. Without any
//                 it is that of the wrapped provider
//
// Regions must have the access that is made of them. Ends that exchange messages are in one
// process, which is where the regions of a key are looked for.
//
// strict_libfabric_count(NAME) counts: "refused" calls, "regions" that are open, of them "bound",
// "busy" closings of an endpoint that had regions, "open_endpoints".
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "stand_in.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Nic {
  std::string name;
  std::string address;
  fi_device_attr device{};
  fi_bus_attr bus{};
  fi_link_attr link{};
  fid_nic object{};
};

struct Kind {
  int registration = 0;  // modes
  std::uint64_t modes = 0;
  std::size_t key_bytes = 8;
  bool unasked = false;
  bool contexts = false;
  bool damage = false;
  int busy_regions = 0;
  int fail_bind = 0;
  std::vector<std::string> nics;
};

// One of the user's registrations: what the user sees, and what the wrapped provider has.
struct Region {
  fid_mr seen{};
  fi_ops ops{};
  fid_mr* below = nullptr;
  fid_domain* domain = nullptr;
  fid_ep* endpoint = nullptr;  // that it is bound to
  bool enabled = false;
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::uint64_t access = 0;
  std::uint64_t key = 0;
};

struct OfEndpoint {
  fi_ops* base = nullptr;
  fi_ops own_base{};
  fi_ops_rma* rma = nullptr;
  fi_ops_rma own_rma{};
  fi_ops_tagged* tagged = nullptr;
  fi_ops_tagged own_tagged{};
  fid_av* addresses = nullptr;
};

struct OfDomain {
  fi_ops_domain* ops = nullptr;
  fi_ops_domain own{};
  fi_ops_mr* mr = nullptr;
  fi_ops_mr own_mr{};
};

struct Fabric {
  fid_fabric seen{};
  fi_ops ops{};
  fi_ops_fabric own{};
  fid_fabric* below = nullptr;
};

struct Below {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_version) version = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
};

struct State {
  std::mutex mutex;
  Kind kind;
  Below below;
  std::map<fid_domain*, std::unique_ptr<OfDomain>> domains;
  std::map<fid_ep*, std::unique_ptr<OfEndpoint>> endpoints;
  std::map<Region*, std::unique_ptr<Region>> regions;
  std::vector<std::unique_ptr<char[]>> damaged;  // copies that the provider writes from
  std::map<std::string, long> counts;
  std::uint64_t next_key = 1;
};

std::uint16_t hexadecimal(const std::string& digits) {
  return static_cast<std::uint16_t>(std::stoul(digits, nullptr, 16));
}

// A NIC is never destroyed: all lists that name it have the same.
int control_nic(fid_t object, int command, void* copy) {
  if (command != FI_DUP) return -FI_ENOSYS;
  *static_cast<fid_nic**>(copy) = reinterpret_cast<fid_nic*>(object);
  return 0;
}
int close_nic(fid_t /*object*/) { return 0; }
fi_ops& nic_operations() {
  static fi_ops all{};
  all.size = sizeof all;
  all.control = control_nic;
  all.close = close_nic;
  return all;
}

Nic& make_nic(const std::string& text) {
  Nic& nic = *new Nic;
  std::array<std::string, 5> parts;
  std::istringstream all(text);
  for (std::string& part : parts) std::getline(all, part, '/');
  nic.name = parts[0];
  nic.address = parts[3];
  nic.device.name = nic.name.data();
  if (parts[1] != "-") {  // 0000:00:03.0
    nic.bus.bus_type = FI_BUS_PCI;
    fi_pci_attr& pci = nic.bus.attr.pci;
    pci.domain_id = hexadecimal(parts[1].substr(0, 4));
    pci.bus_id = static_cast<std::uint8_t>(hexadecimal(parts[1].substr(5, 2)));
    pci.device_id = static_cast<std::uint8_t>(hexadecimal(parts[1].substr(8, 2)));
    pci.function_id = static_cast<std::uint8_t>(hexadecimal(parts[1].substr(11)));
  }
  nic.link.address = nic.address.data();
  nic.link.speed = std::stoul(parts[2]) * 1'000'000'000;
  nic.link.state = parts[4] == "down" ? FI_LINK_DOWN : FI_LINK_UP;
  nic.object.fid.fclass = FI_CLASS_NIC;
  nic.object.fid.ops = &nic_operations();
  nic.object.device_attr = &nic.device;
  nic.object.bus_attr = &nic.bus;
  nic.object.link_attr = &nic.link;
  return nic;
}

void configure(Kind& kind, const std::string& text) {
  kind = {};
  static const std::map<std::string, int> kRegistration = {
      {"local", FI_MR_LOCAL},         {"virtual", FI_MR_VIRT_ADDR},
      {"allocated", FI_MR_ALLOCATED}, {"provider_key", FI_MR_PROV_KEY},
      {"endpoint", FI_MR_ENDPOINT},   {"raw", FI_MR_RAW},
      {"rma_event", FI_MR_RMA_EVENT}, {"mmu_notify", FI_MR_MMU_NOTIFY}};
  stand_in::for_each_entry(text, [&](const std::string& name, const std::string& value) {
    if (const auto mode = kRegistration.find(name); mode != kRegistration.end()) {
      kind.registration |= mode->second;
    } else if (name == "prefix") {
      kind.modes |= FI_MSG_PREFIX;
    } else if (name == "contexts") {
      kind.modes |= FI_CONTEXT | FI_CONTEXT2;
      kind.contexts = true;
    } else if (name == "unasked") {
      kind.unasked = true;
    } else if (name == "damage") {
      kind.damage = true;
    } else if (name == "key_bytes") {
      kind.key_bytes = std::stoul(value);
    } else if (name == "busy_regions") {
      kind.busy_regions = std::stoi(value);
    } else if (name == "fail_bind") {
      kind.fail_bind = std::stoi(value);
    } else if (name == "nic") {
      kind.nics.push_back(value);
    } else {
      std::fprintf(stderr, "strict libfabric: what is %s?\n", name.c_str());
      std::abort();
    }
  });
}

State* make_state() {
  auto* made = new State;
  void* below = dlopen(RW_STAND_IN_LIBFABRIC, RTLD_NOW | RTLD_LOCAL);
  if (below == nullptr) {
    std::fprintf(stderr, "strict libfabric: %s\n", dlerror());
    std::abort();
  }
  stand_in::find(below, made->below.getinfo, "fi_getinfo");
  stand_in::find(below, made->below.freeinfo, "fi_freeinfo");
  stand_in::find(below, made->below.dupinfo, "fi_dupinfo");
  stand_in::find(below, made->below.fabric, "fi_fabric");
  stand_in::find(below, made->below.version, "fi_version");
  stand_in::find(below, made->below.strerror, "fi_strerror");
  const char* text = std::getenv("RW_STRICT_LIBFABRIC");
  configure(made->kind, text == nullptr ? "" : text);
  return made;
}

State& state() {
  static State* const made = make_state();
  return *made;
}
const Below& below() { return state().below; }

Kind kind() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.kind;
}
bool demands(int mode) { return (kind().registration & mode) != 0; }

void count(const char* name, long by = 1) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.counts[name] += by;
}

int refuse(int code) {
  count("refused");
  return -code;
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

bool holds(const Region& region, std::uint64_t offset, std::size_t bytes) {
  return offset <= region.bytes && bytes <= region.bytes - offset;
}

// ---- what calls are given -----------------------------------------------------------------------

// Of a buffer here: puts the wrapped provider's descriptor in the place of ours.
// @return false: the call is to be refused
bool local(const fid_ep* endpoint, const void* data, std::size_t bytes, void*& descriptor,
           std::uint64_t access) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (descriptor == nullptr) return bytes == 0 || (s.kind.registration & FI_MR_LOCAL) == 0;
  const auto found = s.regions.find(static_cast<Region*>(descriptor));
  if (found == s.regions.end()) return false;
  const Region& region = *found->second;
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(data) - region.base;
  if (!region.enabled || !holds(region, offset, bytes) || (region.access & access) != access) {
    return false;
  }
  if (region.endpoint != nullptr && region.endpoint != endpoint) return false;
  descriptor = fi_mr_desc(region.below);
  return true;
}

bool local_all(const fid_ep* endpoint, const iovec* pieces, void* const* given, std::size_t number,
               std::uint64_t access, std::vector<void*>& descriptors) {
  descriptors.assign(number, nullptr);
  for (std::size_t i = 0; i < number; ++i) {
    if (given != nullptr) descriptors[i] = given[i];
    if (!local(endpoint, pieces[i].iov_base, pieces[i].iov_len, descriptors[i], access)) {
      return false;
    }
  }
  return true;
}

using Name = std::vector<char>;
Name name_of(fid_ep* endpoint) {
  Name name(256);
  std::size_t bytes = name.size();
  if (fi_getname(&endpoint->fid, name.data(), &bytes) != 0) bytes = 0;
  name.resize(bytes);
  return name;
}
Name name_of(fid_ep* endpoint, fi_addr_t peer) {
  Name name(256);
  std::size_t bytes = name.size();
  if (fi_av_lookup(of(endpoint).addresses, peer, name.data(), &bytes) != 0) bytes = 0;
  name.resize(bytes);
  return name;
}

// Of memory at a peer: puts the wrapped provider's address and key in the place of ours.
// @return false: the call is to be refused
bool remote(fid_ep* endpoint, fi_addr_t peer, std::uint64_t& address, std::size_t bytes,
            std::uint64_t& key, std::uint64_t access) {
  const Name wanted = name_of(endpoint, peer);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const bool here = std::any_of(s.endpoints.begin(), s.endpoints.end(),
                                [&](const auto& each) { return name_of(each.first) == wanted; });
  if (!here) return (s.kind.registration & (FI_MR_VIRT_ADDR | FI_MR_PROV_KEY)) == 0;
  for (const auto& [pointer, region] : s.regions) {
    if (!region->enabled || region->key != key) continue;
    if (region->endpoint != nullptr && name_of(region->endpoint) != wanted) continue;
    const bool by_address = (s.kind.registration & FI_MR_VIRT_ADDR) != 0;
    const std::uint64_t offset = by_address ? address - region->base : address;
    if (!holds(*region, offset, bytes) || (region->access & access) != access) continue;
    address = offset;
    key = fi_mr_key(region->below);
    return true;
  }
  return false;
}

// What is written instead.
void damage(std::vector<iovec>& pieces) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.kind.damage) return;
  for (iovec& piece : pieces) {
    if (piece.iov_len == 0) continue;
    char* const copy = s.damaged.emplace_back(new char[piece.iov_len]).get();
    std::memcpy(copy, piece.iov_base, piece.iov_len);
    copy[piece.iov_len / 2] ^= 1;
    piece.iov_base = copy;
  }
}

void scribble(void* context) {
  if (context != nullptr && kind().contexts) std::memset(context, 0xa5, sizeof(fi_context2));
}

// ---- endpoints ----------------------------------------------------------------------------------

ssize_t write_message(fid_ep* endpoint, const fi_msg_rma* message, std::uint64_t flags) {
  fi_msg_rma reached = *message;
  fi_rma_iov target = *message->rma_iov;
  std::vector<void*> descriptors;
  if (!local_all(endpoint, message->msg_iov, message->desc, message->iov_count, FI_WRITE,
                 descriptors) ||
      !remote(endpoint, message->addr, target.addr, target.len, target.key, FI_REMOTE_WRITE)) {
    return refuse(FI_EINVAL);
  }
  scribble(message->context);
  std::vector<iovec> pieces(message->msg_iov, message->msg_iov + message->iov_count);
  damage(pieces);
  reached.msg_iov = pieces.data();
  reached.desc = message->desc == nullptr ? nullptr : descriptors.data();
  reached.rma_iov = &target;
  return of(endpoint).rma->writemsg(endpoint, &reached, flags);
}

ssize_t read_rma(fid_ep* endpoint, void* data, std::size_t bytes, void* descriptor, fi_addr_t from,
                 std::uint64_t address, std::uint64_t key, void* context) {
  if (!local(endpoint, data, bytes, descriptor, FI_READ) ||
      !remote(endpoint, from, address, bytes, key, FI_REMOTE_READ)) {
    return refuse(FI_EINVAL);
  }
  scribble(context);
  return of(endpoint).rma->read(endpoint, data, bytes, descriptor, from, address, key, context);
}

ssize_t receive_tagged(fid_ep* endpoint, void* data, std::size_t bytes, void* descriptor,
                       fi_addr_t from, std::uint64_t tag, std::uint64_t ignored, void* context) {
  if (!local(endpoint, data, bytes, descriptor, FI_RECV)) return refuse(FI_EINVAL);
  scribble(context);
  return of(endpoint).tagged->recv(endpoint, data, bytes, descriptor, from, tag, ignored, context);
}

ssize_t send_tagged(fid_ep* endpoint, const void* data, std::size_t bytes, void* descriptor,
                    fi_addr_t to, std::uint64_t tag, void* context) {
  if (!local(endpoint, data, bytes, descriptor, FI_SEND)) return refuse(FI_EINVAL);
  scribble(context);
  return of(endpoint).tagged->send(endpoint, data, bytes, descriptor, to, tag, context);
}

ssize_t send_tagged_pieces(fid_ep* endpoint, const iovec* from, void** given, std::size_t number,
                           fi_addr_t to, std::uint64_t tag, void* context) {
  std::vector<void*> descriptors;
  if (!local_all(endpoint, from, given, number, FI_SEND, descriptors)) return refuse(FI_EINVAL);
  scribble(context);
  return of(endpoint).tagged->sendv(endpoint, from, given == nullptr ? nullptr : descriptors.data(),
                                    number, to, tag, context);
}

int bind_endpoint(fid_t object, fid_t other, std::uint64_t flags) {
  OfEndpoint& endpoint = of(reinterpret_cast<fid_ep*>(object));
  if (other->fclass == FI_CLASS_AV) endpoint.addresses = reinterpret_cast<fid_av*>(other);
  return endpoint.base->bind(object, other, flags);
}

int close_endpoint(fid_t object) {
  auto* const endpoint = reinterpret_cast<fid_ep*>(object);
  State& s = state();
  std::unique_ptr<OfEndpoint> closed;
  {
    const std::lock_guard lock(s.mutex);
    for (const auto& [pointer, region] : s.regions) {
      if (region->endpoint != endpoint) continue;
      ++s.counts["busy"];
      return -FI_EBUSY;
    }
    const auto found = s.endpoints.find(endpoint);
    closed = std::move(found->second);
    s.endpoints.erase(found);
    --s.counts["open_endpoints"];
  }
  object->ops = closed->base;
  endpoint->rma = closed->rma;
  endpoint->tagged = closed->tagged;
  return object->ops->close(object);
}

// ---- registration -------------------------------------------------------------------------------

Region& of(fid_t region) { return *static_cast<Region*>(region->context); }

void enable(Region& region) {
  region.enabled = true;
  region.seen.key = region.key;
}

int bind_region(fid_t object, fid_t endpoint, std::uint64_t /*flags*/) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Region& region = of(object);
  const bool failing = s.kind.fail_bind > 0 && s.kind.fail_bind-- > 0;
  if (failing || region.enabled || endpoint->fclass != FI_CLASS_EP) return -FI_EINVAL;
  region.endpoint = reinterpret_cast<fid_ep*>(endpoint);
  ++s.counts["bound"];
  return 0;
}

int control_region(fid_t object, int command, void* /*argument*/) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Region& region = of(object);
  if (command != FI_ENABLE || region.enabled || region.endpoint == nullptr) return -FI_EINVAL;
  enable(region);
  return 0;
}

int close_region(fid_t object) {
  State& s = state();
  std::unique_ptr<Region> closed;
  {
    const std::lock_guard lock(s.mutex);
    const auto found = s.regions.find(&of(object));
    closed = std::move(found->second);
    s.regions.erase(found);
    --s.counts["regions"];
    if (closed->endpoint != nullptr) --s.counts["bound"];
  }
  return fi_close(&closed->below->fid);
}

bool is_mapped(const void* data, std::size_t bytes) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(data) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes + page - 1) / page;
  std::vector<unsigned char> pages(end - begin / page);
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return mincore(reinterpret_cast<void*>(begin), pages.size() * page, pages.data()) == 0;
}

// @param call registers with the wrapped provider, by a key
template <typename Call>
int make_region(fid_domain* domain, const void* data, std::size_t bytes, std::uint64_t access,
                std::uint64_t wanted, bool host, fid_mr** seen, Call call) {
  State& s = state();
  auto region = std::make_unique<Region>();
  std::uint64_t key_below = 0;
  {
    const std::lock_guard lock(s.mutex);
    const Kind& kind = s.kind;
    if (s.kind.busy_regions > 0 && s.kind.busy_regions-- > 0) return -FI_ENOKEY;
    key_below = region->key = wanted;
    if ((kind.registration & FI_MR_PROV_KEY) != 0) {
      key_below = s.next_key++;
      // All 64 bits are of use, and nothing of the user's key is.
      region->key = (key_below * 0x9e37'79b9'7f4a'7c15U) | std::uint64_t{1} << 63;
    } else {
      if (kind.key_bytes < 8 && wanted >> (8 * kind.key_bytes) != 0) return -FI_EKEYREJECTED;
      for (const auto& [pointer, other] : s.regions) {
        if (other->domain == domain && other->key == wanted) return -FI_ENOKEY;
      }
    }
  }
  if (host && demands(FI_MR_ALLOCATED) && !is_mapped(data, bytes)) return refuse(FI_EFAULT);
  if (const int result = call(key_below, &region->below); result != 0) return result;
  region->domain = domain;
  region->base = reinterpret_cast<std::uintptr_t>(data);
  region->bytes = bytes;
  region->access = access;
  region->ops.size = sizeof region->ops;
  region->ops.close = close_region;
  region->ops.bind = bind_region;
  region->ops.control = control_region;
  region->seen.fid.fclass = FI_CLASS_MR;
  region->seen.fid.context = region.get();
  region->seen.fid.ops = &region->ops;
  region->seen.mem_desc = region.get();
  region->seen.key = FI_KEY_NOTAVAIL;
  if (!demands(FI_MR_ENDPOINT)) enable(*region);
  *seen = &region->seen;
  const std::lock_guard lock(s.mutex);
  ++s.counts["regions"];
  s.regions.emplace(region.get(), std::move(region));
  return 0;
}

int register_plain(fid_t object, const void* data, std::size_t bytes, std::uint64_t access,
                   std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** region,
                   void* context) {
  auto* const domain = reinterpret_cast<fid_domain*>(object);
  return make_region(domain, data, bytes, access, key, true, region,
                     [&](std::uint64_t key_below, fid_mr** made) {
                       return of(domain).mr->reg(object, data, bytes, access, offset, key_below,
                                                 flags, made, context);
                     });
}

// fi_mr_dmabuf, 1.20.
struct DmaBufRange {
  int fd;
  std::uint64_t offset;
  std::size_t len;
  void* base_addr;
};
constexpr std::uint64_t kDmaBuf = std::uint64_t{1} << 40;

int register_kind(fid_t object, const fi_mr_attr* attributes, std::uint64_t flags,
                  fid_mr** region) {
  auto* const domain = reinterpret_cast<fid_domain*>(object);
  const void* data = attributes->mr_iov->iov_base;
  std::size_t bytes = attributes->mr_iov->iov_len;
  if ((flags & kDmaBuf) != 0) {
    const auto& range = *reinterpret_cast<const DmaBufRange*>(attributes->mr_iov);
    data = static_cast<const std::byte*>(range.base_addr) + range.offset;
    bytes = range.len;
  }
  fi_mr_attr reached = *attributes;
  return make_region(domain, data, bytes, attributes->access, attributes->requested_key, false,
                     region, [&](std::uint64_t key_below, fid_mr** made) {
                       reached.requested_key = key_below;
                       return of(domain).mr->regattr(object, &reached, flags, made);
                     });
}

// ---- objects ------------------------------------------------------------------------------------

void drop_nic(fi_info* info) {
  if (info->nic != nullptr) fi_close(&info->nic->fid);
  info->nic = nullptr;
}

void rename(char*& name, const std::string& to) {
  std::free(name);
  name = strdup(to.c_str());
}

// As the wrapped provider knows it.
fi_info* as_below(const fi_info* info) {
  fi_info* plain = below().dupinfo(info);
  drop_nic(plain);
  plain->mode = 0;
  plain->domain_attr->mr_mode &= FI_MR_HMEM;
  if (char* const name = plain->domain_attr->name; name != nullptr) {
    if (const char* const real = std::strchr(name, '@'); real != nullptr) {
      rename(plain->domain_attr->name, std::string(real + 1));
    }
  }
  return plain;
}

bool is_loopback(const fi_info& info) {
  sockaddr_in address{};
  if (info.addr_format != FI_SOCKADDR_IN || info.src_addr == nullptr) return false;
  std::memcpy(&address, info.src_addr, sizeof address);
  return ntohl(address.sin_addr.s_addr) >> 24 == 127;
}

// As the user sees it. @param nic or null
fi_info* as_seen(fi_info* info, const Kind& kind, Nic* nic) {
  drop_nic(info);
  if (nic != nullptr) info->nic = &nic->object;
  fi_info* seen = below().dupinfo(info);
  info->nic = nullptr;
  seen->mode = kind.modes;
  seen->domain_attr->mr_mode = kind.registration | (info->domain_attr->mr_mode & FI_MR_HMEM);
  seen->domain_attr->mr_key_size = kind.key_bytes;
  if (nic != nullptr) {
    rename(seen->domain_attr->name, nic->name + "@" + info->domain_attr->name);
  }
  return seen;
}

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** endpoint, void* context) {
  fi_info* plain = as_below(info);
  const int result = of(domain).ops->endpoint(domain, plain, endpoint, context);
  below().freeinfo(plain);
  if (result != 0) return result;
  auto made = std::make_unique<OfEndpoint>();
  fid_ep* const opened = *endpoint;
  made->base = opened->fid.ops;
  made->own_base = *opened->fid.ops;
  made->own_base.close = close_endpoint;
  made->own_base.bind = bind_endpoint;
  made->rma = opened->rma;
  made->own_rma = *opened->rma;
  made->own_rma.read = read_rma;
  made->own_rma.writemsg = write_message;
  made->tagged = opened->tagged;
  made->own_tagged = *opened->tagged;
  made->own_tagged.recv = receive_tagged;
  made->own_tagged.send = send_tagged;
  made->own_tagged.sendv = send_tagged_pieces;
  opened->fid.ops = &made->own_base;
  opened->rma = &made->own_rma;
  opened->tagged = &made->own_tagged;
  count("open_endpoints");
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.endpoints[opened] = std::move(made);
  return 0;
}

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  fi_info* plain = as_below(info);
  const int result =
      fi_domain(static_cast<Fabric*>(fabric->fid.context)->below, plain, domain, context);
  below().freeinfo(plain);
  if (result != 0) return result;
  auto made = std::make_unique<OfDomain>();
  fid_domain* const opened = *domain;
  made->ops = opened->ops;
  made->own = *opened->ops;
  made->own.endpoint = open_endpoint;
  made->mr = opened->mr;
  made->own_mr = *opened->mr;
  made->own_mr.reg = register_plain;
  made->own_mr.regattr = register_kind;
  opened->ops = &made->own;
  opened->mr = &made->own_mr;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.domains[opened] = std::move(made);
  return 0;
}

int close_fabric(fid_t object) {
  const std::unique_ptr<Fabric> fabric(static_cast<Fabric*>(object->context));
  return fi_close(&fabric->below->fid);
}

}  // namespace

EXPORT void strict_libfabric_configure(const char* text) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  configure(s.kind, text);
}

EXPORT long strict_libfabric_count(const char* name) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.counts[name];
}

EXPORT uint32_t fi_version(void) { return below().version(); }
EXPORT void fi_freeinfo(fi_info* info) { below().freeinfo(info); }
EXPORT fi_info* fi_dupinfo(const fi_info* info) { return below().dupinfo(info); }
EXPORT const char* fi_strerror(int code) { return below().strerror(code); }

EXPORT int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
                      const fi_info* hints, fi_info** found) {
  const Kind now = kind();
  if (!now.unasked &&
      ((now.registration & ~hints->domain_attr->mr_mode) != 0 || (now.modes & ~hints->mode) != 0)) {
    return -FI_ENODATA;
  }
  fi_info* plain = as_below(hints);
  fi_info* listed = nullptr;
  const int result = below().getinfo(version, node, service, flags, plain, &listed);
  below().freeinfo(plain);
  if (result != 0) return result;
  std::vector<Nic*> nics;
  for (const std::string& nic : now.nics) nics.push_back(&make_nic(nic));
  // A NIC reaches other hosts, if anything here does.
  bool remote = false;
  for (fi_info* info = listed; info != nullptr; info = info->next) {
    remote = remote || (info->addr_format == FI_SOCKADDR_IN && !is_loopback(*info));
  }
  remote = remote && !nics.empty();
  if (nics.empty()) nics.push_back(nullptr);
  fi_info** end = found;
  for (fi_info* info = listed; info != nullptr; info = info->next) {
    if (remote && (info->addr_format != FI_SOCKADDR_IN || is_loopback(*info))) continue;
    for (Nic* nic : nics) {
      *end = as_seen(info, now, nic);
      end = &(*end)->next;
    }
  }
  *end = nullptr;
  below().freeinfo(listed);
  return 0;
}

EXPORT int fi_fabric(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) {
  auto made = std::make_unique<Fabric>();
  const int result = below().fabric(attributes, &made->below, context);
  if (result != 0) return result;
  made->ops.size = sizeof made->ops;
  made->ops.close = close_fabric;
  made->own.size = sizeof made->own;
  made->own.domain = open_domain;
  made->seen.fid.fclass = FI_CLASS_FABRIC;
  made->seen.fid.context = made.get();
  made->seen.fid.ops = &made->ops;
  made->seen.ops = &made->own;
  *fabric = &made.release()->seen;
  return 0;
}
