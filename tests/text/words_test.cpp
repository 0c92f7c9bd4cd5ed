// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/words.hpp"

#include "support/test.hpp"

#include <string>
#include <vector>

using namespace episodic;

namespace words_test {

std::vector<std::string> stems(const std::string& text) {
  std::vector<std::string> out;
  for (const Word& w : words_of(text)) {
    REQUIRE(w.begin < text.size());
    out.push_back(w.stem);
  }
  return out;
}

using List = std::vector<std::string>;

TEST_CASE("words: letters and digits, in lower case, without usual endings") {
  REQUIRE(stems("The doors closed; closing \"DOOR\" 42!") ==
          List{"the", "door", "clos", "clos", "door", "42"});
  REQUIRE(stems("is as bed red bus boxes") == List{"is", "as", "bed", "red", "bus", "box"});
  REQUIRE(stems("purge_stale_tokens(v4.17.3)") == List{"purge", "stale", "token", "v4", "17", "3"});
  REQUIRE(stems("").empty());
  REQUIRE(stems(" \n-- ").empty());
}

TEST_CASE("words: of other scripts than Latin") {
  REQUIRE(stems("\xc3\x84PFEL \xce\xa3\xce\x9f\xce\xa6\xce\x9f\xce\xa3") ==
          List{"\xc3\xa4pfel", "\xcf\x83\xce\xbf\xcf\x86\xce\xbf\xcf\x83"});
  // a combining accent belongs to its letter
  REQUIRE(stems("cafe\xcc\x81 au lait") == List{"cafe\xcc\x81", "au", "lait"});
  // characters of languages without spaces are words alone
  REQUIRE(stems("\xe6\x9d\xb1\xe4\xba\xac tower") == List{"\xe6\x9d\xb1", "\xe4\xba\xac", "tower"});
}

TEST_CASE("words: begin where they stand, and bytes that are no text part them") {
  const std::string text =
      "a\xff"
      "bcd \xe6\x9d\xb1x";
  const std::vector<Word> words = words_of(text);
  REQUIRE(words == std::vector<Word>{{"a", 0}, {"bcd", 2}, {"\xe6\x9d\xb1", 6}, {"x", 9}});
}

}  // namespace words_test
