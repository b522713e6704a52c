#include "transports/bare_fabric.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace ropewalk {
namespace {

constexpr std::uint64_t kTag = 7;

void check(ssize_t result, const char* call) {
  if (result < 0) {
    throw Error(Errc::kSystem, "{}: {}", call, fi_strerror(static_cast<int>(-result)));
  }
}

}  // namespace

struct BareFabric::State {
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  fid_cq* sent = nullptr;
  fid_cq* received = nullptr;
  fid_av* addresses = nullptr;
  fid_ep* endpoint = nullptr;
  fid_mr* out_memory = nullptr;
  fid_mr* in_memory = nullptr;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  std::byte* out = nullptr;
  std::byte* in = nullptr;
  std::vector<fi_context2> contexts = std::vector<fi_context2>(64);
  std::size_t sends = 0;  // under way
  std::size_t receives = 0;

  // Both queues make progress: the peer may need it.
  void poll() {
    std::array<fi_cq_tagged_entry, 16> entries;
    ssize_t got = fi_cq_read(received, entries.data(), entries.size());
    if (got > 0) receives -= static_cast<std::size_t>(got);
    if (got < 0 && got != -FI_EAGAIN) check(got, "fi_cq_read of receives");
    if (sends == 0 && got > 0) return;
    got = fi_cq_read(sent, entries.data(), entries.size());
    if (got > 0) sends -= static_cast<std::size_t>(got);
    if (got < 0 && got != -FI_EAGAIN) check(got, "fi_cq_read of sends");
  }
  void post_receive(std::size_t bytes, std::size_t place) {
    for (;;) {
      const ssize_t result =
          fi_trecv(endpoint, in, bytes, in_memory == nullptr ? nullptr : fi_mr_desc(in_memory),
                   FI_ADDR_UNSPEC, kTag, 0, &contexts[place % contexts.size()]);
      if (result == 0) break;
      if (result != -FI_EAGAIN) check(result, "fi_trecv");
      poll();
    }
    ++receives;
  }
  void send(std::size_t bytes, std::size_t place) {
    const bool inject = bytes <= info->tx_attr->inject_size;
    for (;;) {
      const ssize_t result =
          inject ? fi_tinject(endpoint, out, bytes, peer, kTag)
                 : fi_tsend(endpoint, out, bytes,
                            out_memory == nullptr ? nullptr : fi_mr_desc(out_memory), peer, kTag,
                            &contexts[place % contexts.size()]);
      if (result == 0) break;
      if (result != -FI_EAGAIN) check(result, "fi_tsend");
      poll();
    }
    if (!inject) ++sends;
  }
};

BareFabric::BareFabric(const std::string& provider, int socket, void* out, void* in,
                       std::size_t bytes)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.out = static_cast<std::byte*>(out);
  s.in = static_cast<std::byte*>(in);
  fi_info* hints = fi_allocinfo();
  hints->caps = FI_TAGGED;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  check(fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &s.info), "fi_getinfo");
  fi_freeinfo(hints);
  // Loopback where the provider has network interfaces.
  fi_info* chosen = s.info;
  for (fi_info* each = s.info; each != nullptr; each = each->next) {
    if (std::strcmp(each->domain_attr->name, "lo") == 0 && each->addr_format == FI_SOCKADDR_IN) {
      chosen = each;
      break;
    }
  }
  check(fi_fabric(chosen->fabric_attr, &s.fabric, nullptr), "fi_fabric");
  check(fi_domain(s.fabric, chosen, &s.domain, nullptr), "fi_domain");
  fi_cq_attr queue{};
  queue.format = FI_CQ_FORMAT_TAGGED;
  queue.size = 1024;
  check(fi_cq_open(s.domain, &queue, &s.sent, nullptr), "fi_cq_open");
  check(fi_cq_open(s.domain, &queue, &s.received, nullptr), "fi_cq_open");
  fi_av_attr vector{};
  vector.type = FI_AV_TABLE;
  check(fi_av_open(s.domain, &vector, &s.addresses, nullptr), "fi_av_open");
  check(fi_endpoint(s.domain, chosen, &s.endpoint, nullptr), "fi_endpoint");
  check(fi_ep_bind(s.endpoint, &s.addresses->fid, 0), "fi_ep_bind");
  check(fi_ep_bind(s.endpoint, &s.sent->fid, FI_TRANSMIT), "fi_ep_bind");
  check(fi_ep_bind(s.endpoint, &s.received->fid, FI_RECV), "fi_ep_bind");
  check(fi_enable(s.endpoint), "fi_enable");
  if ((chosen->domain_attr->mr_mode & FI_MR_LOCAL) != 0) {
    check(fi_mr_reg(s.domain, out, bytes, FI_SEND, 0, 1, 0, &s.out_memory, nullptr), "fi_mr_reg");
    check(fi_mr_reg(s.domain, in, bytes, FI_RECV, 0, 2, 0, &s.in_memory, nullptr), "fi_mr_reg");
  }
  std::array<std::byte, 256> own{};
  std::array<std::byte, 256> theirs{};
  std::size_t length = own.size();
  check(fi_getname(&s.endpoint->fid, own.data(), &length), "fi_getname");
  if (write(socket, own.data(), own.size()) != static_cast<ssize_t>(own.size()) ||
      recv(socket, theirs.data(), theirs.size(), MSG_WAITALL) !=
          static_cast<ssize_t>(theirs.size())) {
    throw Error(Errc::kPeerLost, "{}", "the other process is gone");
  }
  check(fi_av_insert(s.addresses, theirs.data(), 1, &s.peer, 0, nullptr), "fi_av_insert");
}

BareFabric::~BareFabric() {
  State& s = *state_;
  const auto close = [](auto* object) {
    if (object != nullptr) fi_close(&object->fid);
  };
  close(s.endpoint);
  close(s.out_memory);
  close(s.in_memory);
  close(s.addresses);
  close(s.sent);
  close(s.received);
  close(s.domain);
  close(s.fabric);
  fi_freeinfo(s.info);
}

void BareFabric::send_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) {
  State& s = *state_;
  for (std::size_t i = 0; i < messages; ++i) {
    s.send(bytes, i);
    while (s.sends >= in_flight) s.poll();
  }
  while (s.sends > 0) s.poll();
}

void BareFabric::receive_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) {
  State& s = *state_;
  for (std::size_t i = 0; i < messages; ++i) {
    s.post_receive(bytes, 32 + i % 32);
    while (s.receives >= in_flight) s.poll();
  }
  while (s.receives > 0) s.poll();
}

void BareFabric::ping_pong(std::size_t bytes, int times, bool first) {
  State& s = *state_;
  s.post_receive(bytes, 32);
  for (int i = 0; i < times; ++i) {
    if (first) s.send(bytes, 0);
    while (s.receives > 0) s.poll();
    if (i + 1 < times) s.post_receive(bytes, 32 + static_cast<std::size_t>(i) % 32);
    if (!first) s.send(bytes, 0);
  }
  while (s.sends > 0) s.poll();
}

}  // namespace ropewalk
