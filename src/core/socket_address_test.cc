#include "core/socket_address.h"

#include <gtest/gtest.h>
#include <net/if.h>

#include "core/error.h"

namespace ropewalk {
namespace {

SocketAddress address_of(const char* text, std::uint32_t scope = 0) {
  SocketAddress address = resolve(text).front();
  address.set_scope(scope);
  return address;
}

Errc code_of(const char* text) {
  try {
    (void)resolve(text);
  } catch (const Error& error) {
    return error.code();
  }
  return Errc::kInternal;
}

TEST(SocketAddresses, ResolveNamesTheError) {
  for (const char* text : {"", "host", ":80", "host:", "host:x", "host:0", "host:70000"}) {
    EXPECT_EQ(code_of(text), Errc::kInvalidArgument) << text;
  }
}

TEST(SocketAddresses, TextCanBeResolved) {
  for (const char* text : {"127.0.0.1:80", "[::1]:65535", "[2001:db8::1]:4711"}) {
    EXPECT_EQ(resolve(text).front().text(), text);
  }
  EXPECT_EQ(SocketAddress().text(), "no address");
}

TEST(SocketAddresses, ScopesAreNamedWhereTheInterfaceIsThere) {
  EXPECT_EQ(address_of("[fe80::1]:1", if_nametoindex("lo")).text(), "[fe80::1%lo]:1");
  EXPECT_EQ(address_of("[fe80::1]:1", 1'000'000'000).text(), "[fe80::1%1000000000]:1");
  EXPECT_TRUE(address_of("[fe80::1]:1").link_local());
  EXPECT_FALSE(address_of("[2001:db8::1]:1").link_local());
  EXPECT_FALSE(address_of("169.254.0.1:1").link_local());
}

TEST(SocketAddresses, HostsAreDistinguished) {
  EXPECT_TRUE(address_of("127.0.0.1:1").same_host(address_of("127.0.0.1:2")));
  EXPECT_FALSE(address_of("127.0.0.1:1").same_host(address_of("127.0.0.2:1")));
  EXPECT_TRUE(address_of("[fe80::1]:1", 1).same_host(address_of("[fe80::1]:1", 1)));
  EXPECT_FALSE(address_of("[fe80::1]:1", 1).same_host(address_of("[fe80::1]:1", 2)));
  EXPECT_FALSE(address_of("[::1]:1").same_host(address_of("127.0.0.1:1")));
}

TEST(SocketAddresses, PartsMakeTheSameAddress) {
  for (const SocketAddress& address :
       {address_of("10.1.2.3:4711"), address_of("[2001:db8::7]:1"), address_of("[fe80::1]:9", 3)}) {
    const SocketAddress back =
        SocketAddress::of(address.family(), address.host_bytes(), address.port(), address.scope());
    EXPECT_TRUE(back.same_host(address));
    EXPECT_EQ(back.text(), address.text());
  }
}

}  // namespace
}  // namespace ropewalk
