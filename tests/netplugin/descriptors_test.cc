// Open descriptors of the network plugin: the descriptors of a program's connections are closed
// when the last connection is closed, also in versions 4 to 10, which have no finalize.
#include <algorithm>
#include <random>

#include "core/testing/child_process.h"
#include "core/testing/in_child.h"
#include "netplugin/harness.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::netplugin::testing {
namespace {

using ropewalk::testing::Child;
using ropewalk::testing::in_child;
using ropewalk::testing::read_all;
using ropewalk::testing::write_all;

class Descriptors : public PluginTest, public ::testing::WithParamInterface<Setup> {
 protected:
  Descriptors() {
    setenv("ROPEWALK_SISCI_LIBRARY", RW_SOFTWARE_SISCI, 1);
    use(GetParam().net);
  }
  ~Descriptors() override { unsetenv("ROPEWALK_SISCI_LIBRARY"); }

 private:
  const transport::SoftwareFabric fabric_;
};

std::size_t descriptors() { return count_entries("/proc/self/fd"); }

// Connections of which each moves groups of messages: a group is received by one request, and each
// of its messages is sent by one of its own.
class Churn {
 public:
  Churn(Net& net, std::size_t connections, unsigned seed) : net_(net), random_(seed) {
    ends_.resize(connections);
  }

  void listen(std::vector<HandleBytes>& handles) {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      handles.emplace_back();
      ends_[i].listener = net_.listen(handles.back());
    }
  }
  void connect(const std::vector<HandleBytes>& handles) {
    for (std::size_t i = 0; i < ends_.size(); ++i) ends_[i].sender = net_.connect(handles[i]);
  }
  void accept() {
    for (Ends& ends : ends_) {
      ends.receiver = net_.accept(ends.listener);
      check(net_.api->close_listen(ends.listener), "closeListen");
    }
  }

  // All groups are of equal length for both ends.
  void move(std::size_t groups) {
    const std::size_t most = net_.api->version() == 4 ? 1 : 8;
    for (std::size_t i = 0; i < groups; ++i) {
      const std::size_t length = 1 + (i * 5 + 2) % most;
      const std::size_t bytes = std::array{1U, 700U, 9000U, 120'000U}[i % 4];
      for (Ends& ends : ends_) move_group(ends, length, bytes);
    }
  }

  // In an order of its own.
  void close() {
    std::vector<std::pair<void*, bool>> open;
    for (const Ends& ends : ends_) {
      if (ends.sender != nullptr) open.emplace_back(ends.sender, true);
      if (ends.receiver != nullptr) open.emplace_back(ends.receiver, false);
    }
    std::shuffle(open.begin(), open.end(), random_);
    for (const auto& [comm, sends] : open) {
      check(sends ? net_.api->close_send(comm) : net_.api->close_recv(comm), "close");
    }
  }

 private:
  struct Ends {
    void* listener = nullptr;
    void* sender = nullptr;
    void* receiver = nullptr;
  };

  void move_group(const Ends& ends, std::size_t length, std::size_t bytes) {
    NetApi& api = *net_.api;
    const Bytes wanted = numbered(length * bytes, bytes);
    Bytes out = wanted;
    Bytes in(length * bytes);
    void* out_memory = ends.sender == nullptr
                           ? nullptr
                           : net_.register_memory(ends.sender, out.data(), out.size());
    void* in_memory = ends.receiver == nullptr
                          ? nullptr
                          : net_.register_memory(ends.receiver, in.data(), in.size());
    std::vector<Message> messages;
    for (std::size_t i = 0; i < length; ++i) {
      messages.push_back({in.data() + i * bytes, bytes, static_cast<int>(i), in_memory});
    }
    Transfer receive;
    std::vector<Transfer> sends(length);
    poll_until(
        [&] {
          bool done = true;
          if (ends.receiver != nullptr) {
            if (receive.request == nullptr) {
              check(api.irecv(ends.receiver, messages, &receive.request), "irecv");
            }
            done = receive.test(api);
          }
          for (std::size_t i = 0; ends.sender != nullptr && i < length; ++i) {
            if (sends[i].request == nullptr) {
              check(api.isend(ends.sender,
                              {out.data() + i * bytes, bytes, static_cast<int>(i), out_memory},
                              &sends[i].request),
                    "isend");
            }
            done = sends[i].test(api) && done;
          }
          return done;
        },
        "a group");
    if (ends.receiver != nullptr && in != wanted) throw std::runtime_error("wrong data");
    if (ends.sender != nullptr) check(api.deregister(ends.sender, out_memory), "deregMr");
    if (ends.receiver != nullptr) check(api.deregister(ends.receiver, in_memory), "deregMr");
  }

  Net& net_;
  std::mt19937 random_;
  std::vector<Ends> ends_;
};

void churn_alone(Net& net, unsigned seed) {
  Churn churn(net, 1 + seed % 3, seed);
  std::vector<HandleBytes> handles;
  churn.listen(handles);
  churn.connect(handles);
  churn.accept();
  churn.move(4);
  churn.close();
}

// Each test in a process of its own: the code of libsisci stays where it was loaded, with its
// threads.

TEST_P(Descriptors, AreAsBeforeAfterTheLastClose) {
  const auto body = [&] {
    Net net(library_.api(GetParam().version));
    churn_alone(net, 0);  // what the process or a device opens once stays open
    const std::size_t before = descriptors();
    for (unsigned round = 0; round < 12; ++round) {
      SCOPED_TRACE(round);
      churn_alone(net, round);
      EXPECT_EQ(descriptors(), before);
    }
    return 0;
  };
  EXPECT_EQ(in_child(body), 0);
}

// One process's side of a round: `socket` leads to the other. @return descriptors that stayed open
int churn_with(Net& net, int socket, unsigned round, bool sends_first, std::size_t before) {
  constexpr std::size_t kConnections = 11;
  // Each process sends over half of the connections.
  Churn sending(net, kConnections, round);
  Churn receiving(net, kConnections, round + 1);
  std::vector<HandleBytes> mine;
  receiving.listen(mine);
  std::vector<HandleBytes> theirs(kConnections);
  for (const HandleBytes& handle : mine) {
    write_all(socket, handle.bytes.data(), handle.bytes.size());
  }
  for (HandleBytes& handle : theirs) read_all(socket, handle.bytes.data(), handle.bytes.size());
  sending.connect(theirs);
  receiving.accept();
  for (Churn* each : {sends_first ? &sending : &receiving, sends_first ? &receiving : &sending}) {
    each->move(4);
  }
  sending.close();
  receiving.close();
  return static_cast<int>(descriptors()) - static_cast<int>(before);
}

TEST_P(Descriptors, AreAsBeforeAfterTheLastCloseOfTwoProcesses) {
  const auto side = [&](int socket, bool sends_first) {
    Net net(library_.api(GetParam().version));
    churn_with(net, socket, 0, sends_first, 0);
    const std::size_t before = descriptors();
    for (unsigned round = 0; round < 6; ++round) {
      EXPECT_EQ(churn_with(net, socket, round, sends_first, before), 0) << "round " << round;
    }
    return HasFailure() ? 1 : 0;
  };
  const auto body = [&] {
    Child child([&](int socket) { return side(socket, true); });
    const int outcome = side(child.socket(), false);
    return outcome + child.wait();
  };
  EXPECT_EQ(in_child(body), 0);
}

std::vector<Setup> descriptor_setups() {
  std::vector<Setup> all;
  for (int version = abi::kOldestVersion; version <= abi::kNewestVersion; ++version) {
    for (const char* net : {"auto", "shm", "tcp", "sisci"}) all.push_back({version, net});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Versions, Descriptors, ::testing::ValuesIn(descriptor_setups()),
                         case_name);

}  // namespace
}  // namespace ropewalk::netplugin::testing
