#include "core/network_interfaces.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"

namespace ropewalk {
namespace {

TEST(Interfaces, FilterIsNccls) {
  EXPECT_TRUE(passes_filter("eth0", ""));
  EXPECT_TRUE(passes_filter("eth0", "eth"));
  EXPECT_TRUE(passes_filter("eth0", "ib,eth"));
  EXPECT_FALSE(passes_filter("lo", "ib,eth"));
  EXPECT_FALSE(passes_filter("eth01", "=eth0"));
  EXPECT_TRUE(passes_filter("eth0", "=lo,eth0"));
  EXPECT_FALSE(passes_filter("docker0", "^docker,lo"));
  EXPECT_FALSE(passes_filter("lo", "^docker,lo"));
  EXPECT_TRUE(passes_filter("eth0", "^docker,lo"));
  EXPECT_TRUE(passes_filter("eth01", "^=eth0"));
  EXPECT_FALSE(passes_filter("eth0", "^=eth0"));
  for (const char* empty : {"^", "=", "^=", ",", "^,"}) {
    EXPECT_TRUE(passes_filter("eth0", empty)) << empty;
  }
}

InterfaceAddress made(const char* name, const char* address, bool loopback = false) {
  return {name, resolve(address).front(), loopback, ""};
}

std::string names(std::string_view pattern) {
  const std::vector<InterfaceAddress> all = {
      made("lo", "127.0.0.1:1", true), made("docker0", "172.17.0.1:1"), made("eth0", "[fe80::1]:1"),
      made("eth0", "[2001:db8::1]:1"), made("eth0", "10.0.0.1:1"),      made("eth10", "10.0.1.1:1"),
      made("ib0", "10.0.2.1:1")};
  std::string text;
  for (const InterfaceAddress& entry : choose_interfaces(all, pattern)) {
    text += entry.name + "=" + entry.address.text() + " ";
  }
  return text;
}

TEST(Interfaces, PatternsHaveNcclsMeaning) {
  EXPECT_EQ(names(""),
            "eth0=10.0.0.1:1 eth10=10.0.1.1:1 ib0=10.0.2.1:1 eth0=[2001:db8::1]:1 "
            "eth0=[fe80::1]:1 docker0=172.17.0.1:1 lo=127.0.0.1:1 ");
  EXPECT_EQ(names("ib,lo"), "ib0=10.0.2.1:1 lo=127.0.0.1:1 ");
  EXPECT_EQ(names("eth1"), "eth10=10.0.1.1:1 ");
  EXPECT_EQ(names("=eth1"), "");
  EXPECT_EQ(names("=ib0,eth10"), "eth10=10.0.1.1:1 ib0=10.0.2.1:1 ");
  EXPECT_EQ(names("^docker,lo,eth"), "ib0=10.0.2.1:1 ");
  EXPECT_EQ(names("^=eth0"),
            "eth10=10.0.1.1:1 ib0=10.0.2.1:1 docker0=172.17.0.1:1 lo=127.0.0.1:1 ");
}

TEST(Interfaces, EachInterfaceHasOneAddressTheBest) {
  const std::vector<InterfaceAddress> all = {
      made("eth0", "[fe80::1]:1"), made("lo", "127.0.0.1:1", true), made("eth0", "[fd00::1]:1"),
      made("eth1", "10.0.1.1:1"),  made("eth0", "10.0.0.1:1"),      made("eth0", "10.0.0.2:1"),
      made("eth1", "[fd00::2]:1"), made("docker0", "172.17.0.1:1"),
  };
  const auto chosen = [&](std::string_view filter) {
    std::string text;
    for (const InterfaceAddress& each : one_of_each(all, filter)) {
      text += each.name + " " + each.address.text() + ", ";
    }
    return text;
  };
  EXPECT_EQ(chosen(""), "eth0 10.0.0.1:1, eth1 10.0.1.1:1, ");
  EXPECT_EQ(chosen("docker,eth1"), "eth1 10.0.1.1:1, docker0 172.17.0.1:1, ");
  EXPECT_EQ(chosen("ib"), "");
}

TEST(Interfaces, BridgesOfContainersAreTheLastChoice) {
  for (const char* name : {"docker0", "br-0123456789ab", "virbr0", "cni0", "podman1", "lxdbr0"}) {
    EXPECT_TRUE(is_last_choice(made(name, "172.18.0.1:1"))) << name;
  }
  for (const char* name : {"eth0", "br0", "br-lan", "br-0123456789xy", "ib0"}) {
    EXPECT_FALSE(is_last_choice(made(name, "10.0.0.1:1"))) << name;
  }
}

TEST(Interfaces, SubnetIsTheAddressUnderItsMask) {
  const auto subnet = [](const char* address, const char* mask) {
    return subnet_of(resolve(address).front(), resolve(mask).front());
  };
  EXPECT_EQ(subnet("10.1.2.3:1", "255.255.255.0:1"), "10.1.2.0/24");
  EXPECT_EQ(subnet("10.1.2.3:1", "255.255.240.0:1"), "10.1.0.0/20");
  EXPECT_EQ(subnet("10.1.2.3:1", "255.255.255.255:1"), "10.1.2.3/32");
  EXPECT_EQ(subnet("[2001:db8::7]:1", "[ffff:ffff:ffff:ffff::]:1"), "2001:db8::/64");
}

TEST(Interfaces, LoopbacksSubnetIsFound) {
  const std::vector<InterfaceAddress> all = interface_addresses();
  const auto loopback = std::ranges::find_if(all, [](const InterfaceAddress& each) {
    return each.loopback && each.address.family() == AF_INET;
  });
  if (loopback == all.end()) GTEST_SKIP() << "there is no loopback here";
  EXPECT_EQ(loopback->subnet, "127.0.0.0/8");
}

TEST(Interfaces, ErrorNamesTheSettingAndTheInterfaces) {
  const std::vector<InterfaceAddress> all = {made("eth0", "10.0.0.1:1"), made("lo", "127.0.0.1:1")};
  try {
    throw_no_interface(all, "=ib0");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_STREQ(error.what(),
                 "ROPEWALK_SOCKET_IFNAME \"=ib0\": no network interface that is up matches; there "
                 "are: eth0 lo");
  }
  try {
    throw_no_interface({}, "");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kSystem);
  }
}

TEST(Interfaces, LoopbackIsRunningWithAnAddress) {
  const InterfaceState state = interface_state("lo");
  EXPECT_TRUE(state.running);
  EXPECT_TRUE(state.has_address);
  EXPECT_FALSE(interface_state("nosuch0").running);
  const std::vector<InterfaceAddress> all = interface_addresses();
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const auto& entry) {
    return entry.name == "lo" && entry.loopback && entry.address.port() == 0;
  }));
}

}  // namespace
}  // namespace ropewalk
