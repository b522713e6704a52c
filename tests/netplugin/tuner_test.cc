// The tuner that the network plugin brings, called as NCCL calls it.
#include "netplugin/abi/tuner.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <string>

#include "netplugin/harness.h"

namespace ropewalk::netplugin::testing {
namespace {

constexpr int kAlgorithms = 7;
constexpr int kProtocols = 3;
using Times = std::array<float, kAlgorithms * kProtocols>;

// A variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// The plugin's network, open.
class Open {
 public:
  explicit Open(const char* network)
      : chosen_("ROPEWALK_NET", network), net_(library_.api(abi::kNewestVersion)) {}

 private:
  Variable chosen_;
  Library library_{RW_PLUGIN};
  Net net_;
};

struct Answer {
  Times times;
  int channels = 0;
  [[nodiscard]] float at(int algorithm, int protocol) const {
    return times.at(static_cast<std::size_t>(algorithm * kProtocols + protocol));
  }
};

// One interface for all versions.
class Tuner {
 public:
  Tuner(int version, std::size_t ranks, std::size_t nodes) : version_(version) {
    library_ = dlopen(RW_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw std::runtime_error(dlerror());
    table_ = dlsym(library_, ("ncclTunerPlugin_v" + std::to_string(version)).c_str());
    if (table_ == nullptr) throw std::runtime_error("no tuner");
    int result = 0;
    switch (version) {
      case 3: result = as<abi::TunerV3>().init(ranks, nodes, nullptr, &context_); break;
      case 4: result = as<abi::TunerV4>().init(ranks, nodes, nullptr, &context_); break;
      case 5: result = named<abi::TunerV5>(ranks, nodes); break;
      default: result = named<abi::TunerV6>(ranks, nodes); break;
    }
    EXPECT_EQ(result, 0);
  }
  ~Tuner() {
    switch (version_) {
      case 3: as<abi::TunerV3>().destroy(context_); break;
      case 4: as<abi::TunerV4>().destroy(context_); break;
      case 5: as<abi::TunerV5>().finalize(context_); break;
      default: as<abi::TunerV6>().finalize(context_); break;
    }
    dlclose(library_);
  }
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  [[nodiscard]] Answer ask(std::size_t bytes, const Times& times) const {
    Answer answer{times};
    auto** table = reinterpret_cast<float**>(answer.times.data());
    const auto call = [&](const auto& tuner) {
      return tuner.get_coll_info(context_, 4, bytes, 1, table, kAlgorithms, kProtocols, 0,
                                 &answer.channels);
    };
    int result = 0;
    switch (version_) {
      case 3:
        result = as<abi::TunerV3>().get_coll_info(context_, 4, bytes, 1, table, kAlgorithms,
                                                  kProtocols, &answer.channels);
        break;
      case 4: result = call(as<abi::TunerV4>()); break;
      case 5: result = call(as<abi::TunerV5>()); break;
      default: result = call(as<abi::TunerV6>()); break;
    }
    EXPECT_EQ(result, 0);
    return answer;
  }

 private:
  template <typename Table>
  [[nodiscard]] const Table& as() const {
    return *static_cast<const Table*>(table_);
  }
  template <typename Table>
  int named(std::size_t ranks, std::size_t nodes) {
    return as<Table>().init(&context_, 1, ranks, nodes, nullptr, nullptr, nullptr);
  }
  const int version_;
  void* library_ = nullptr;
  void* table_ = nullptr;
  void* context_ = nullptr;
};

// Ring and tree with all protocols; the others cannot be.
Times two_algorithms() {
  Times times;
  times.fill(-1);
  for (std::size_t i = 0; i < 2 * kProtocols; ++i) times[i] = 10.0F + static_cast<float>(i);
  return times;
}

class TunerOf : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Versions, TunerOf, ::testing::Values(3, 4, 5, 6));

TEST_P(TunerOf, TakesLlForShortOperationsOnly) {
  const Open open("shm");
  const Tuner tuner(GetParam(), 2, 2);
  const Answer brief = tuner.ask(8 << 10, two_algorithms());
  EXPECT_EQ(brief.channels, 0);
  for (const int algorithm : {0, 1}) {
    EXPECT_LT(brief.at(algorithm, abi::kProtocolLl), 100);
    EXPECT_LT(brief.at(algorithm, abi::kProtocolSimple), 100);
    EXPECT_GT(brief.at(algorithm, abi::kProtocolLl128), 1e6);
  }
  const Answer longer = tuner.ask((8 << 10) + 1, two_algorithms());
  for (const int algorithm : {0, 1}) {
    EXPECT_GT(longer.at(algorithm, abi::kProtocolLl), 1e6);
    EXPECT_LT(longer.at(algorithm, abi::kProtocolSimple), 100);
  }
  for (int algorithm = 2; algorithm < kAlgorithms; ++algorithm) {
    for (int protocol = 0; protocol < kProtocols; ++protocol) {
      EXPECT_EQ(longer.at(algorithm, protocol), -1);
    }
  }
}

TEST_P(TunerOf, GivesChannelsByTheRootOfTheSize) {
  const Open open("cuda_ipc");
  const Tuner tuner(GetParam(), 2, 2);
  const auto channels = [&](std::size_t mebibytes) {
    return tuner.ask(mebibytes << 20, two_algorithms()).channels;
  };
  EXPECT_EQ(channels(1), 2);
  EXPECT_EQ(channels(4), 2);
  EXPECT_EQ(channels(16), 4);
  EXPECT_EQ(channels(64), 8);
  EXPECT_EQ(channels(128), 12);
  EXPECT_EQ(channels(4096), 12);
}

TEST_P(TunerOf, RulesOutLl128AloneOverBridgesAndFabrics) {
  std::vector<const char*> networks = {"sisci"};
#ifdef RW_STAND_IN_LIBFABRIC
  networks.push_back("ofi");
#endif
  for (const char* network : networks) {
    SCOPED_TRACE(network);
    const Open open(network);
    const Answer answer = Tuner(GetParam(), 2, 2).ask(128 << 20, two_algorithms());
    EXPECT_EQ(answer.channels, 0);
    for (const int algorithm : {0, 1}) {
      EXPECT_LT(answer.at(algorithm, abi::kProtocolLl), 100);
      EXPECT_LT(answer.at(algorithm, abi::kProtocolSimple), 100);
      EXPECT_GT(answer.at(algorithm, abi::kProtocolLl128), 1e6);
    }
  }
}

TEST_P(TunerOf, LeavesTheOnlyOption) {
  const Open open("shm");
  const Tuner tuner(GetParam(), 2, 2);
  Times only_ll;
  only_ll.fill(-1);
  only_ll[abi::kProtocolLl] = 5;
  const Answer answer = tuner.ask(1 << 20, only_ll);
  EXPECT_EQ(answer.times, only_ll);
  EXPECT_EQ(answer.channels, 0);
}

TEST_P(TunerOf, DeclinesWithinAHostAndForOtherNetworks) {
  const Times before = two_algorithms();
  const auto declines = [&](std::size_t nodes) {
    const Answer answer = Tuner(GetParam(), 2, nodes).ask(1 << 20, before);
    return answer.times == before && answer.channels == 0;
  };
  EXPECT_TRUE(declines(2)) << "the network was never opened";
  {
    const Open open("shm");
    EXPECT_TRUE(declines(1));
    EXPECT_FALSE(declines(2));
    const Variable other("NCCL_NET", "Socket");
    EXPECT_TRUE(declines(2));
    const Variable own("NCCL_NET", "ropewalk");
    EXPECT_FALSE(declines(2));
  }
  const Open open("tcp");
  EXPECT_TRUE(declines(2));
}

TEST(Variables, AreSetOnlyWhereTheUserHasNot) {
  unsetenv("NCCL_MIN_NCHANNELS");
  {
    const Open open("shm");
    EXPECT_STREQ(std::getenv("NCCL_MIN_NCHANNELS"), "8");
    EXPECT_EQ(std::getenv("NCCL_BUFFSIZE"), nullptr);
  }
  {
    const Variable own("NCCL_MIN_NCHANNELS", "3");
    const Open open("shm");
    EXPECT_STREQ(std::getenv("NCCL_MIN_NCHANNELS"), "3");
  }
}

}  // namespace
}  // namespace ropewalk::netplugin::testing
