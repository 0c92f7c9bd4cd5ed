// SPDX-License-Identifier: Apache-2.0
// The rules that look for an answer in what a model wrote, as the published programs have them.
#include "support/test.hpp"

#include <string>
#include <vector>

#include "scoring/contained.hpp"

using namespace episodic::suites;

namespace {

using Texts = std::vector<std::string>;

bool babilong(const char* task, const char* prediction, const char* target, const char* question) {
  return babilong_right(prediction, target, question, babilong_labels(task));
}

}  // namespace

TEST_CASE("RULER counts the answers that stand in a prediction, whatever their case") {
  const Texts two{"1234567", "7654321"};
  CHECK(matched_share("They are 7654321 and 1234567.", two) == 1);
  CHECK(matched_share("only 1234567", two) == 0.5);
  CHECK(matched_share("", two) == 0);
  // substrings count, as there
  CHECK(matched_share("x12345678", two) == 0.5);
  CHECK(matched_share("ABCDE", Texts{"abcde"}) == 1);
  CHECK(matched_share("abcde", Texts{"ABCDE"}) == 1);
  CHECK(matched_share("\xc3\x84pfel", Texts{"\xc3\xa4pfel"}) == 1);  // not of ASCII alone
  CHECK(matched_share("three words of ten", Texts{"three", "four", "ten", "of"}) == 0.75);
  CHECK(matched_any("in Paris, they say", Texts{"Lyon", "paris"}));
  CHECK_FALSE(matched_any("in Rome", Texts{"Lyon", "paris"}));
}

TEST_CASE("BABILong takes the target alone, from the first sentence") {
  const char* where = "Where is Mary?";
  CHECK(babilong("qa1", "The bathroom", "bathroom", where));
  CHECK(babilong("qa1", "BATHROOM. Or the kitchen.", "bathroom", where));
  CHECK_FALSE(babilong("qa1", "bathroom or kitchen", "bathroom", where));
  CHECK_FALSE(babilong("qa1", "kitchen", "bathroom", where));
  CHECK_FALSE(babilong("qa1", "I say. bathroom", "bathroom", where));
  CHECK_FALSE(babilong("qa1", "", "bathroom", where));
  CHECK(babilong("qa1", "bathroom <context> kitchen", "bathroom", where));
  CHECK(babilong("qa1", "bathroom <Example> kitchen", "bathroom", where));
  // published, cutting at "Question" comes after the lower case: it never does
  CHECK_FALSE(babilong("qa1", "bathroom Question: kitchen", "bathroom", where));
  // labels that the question names do not count, neither for nor against
  const char* before = "Where was the apple before the kitchen?";
  CHECK(babilong("qa3", "Before the kitchen it was in the garden", "garden", before));
  CHECK_FALSE(babilong("qa3", "kitchen", "kitchen", before));
  CHECK(babilong("qa5", "Fred gave it to jeff", "Jeff", "Who did Fred give the milk to?"));
  CHECK_FALSE(babilong("qa5", "Bill or Jeff", "Jeff", "Who did Fred give the milk to?"));
  CHECK(babilong("qa1", "Sandra is in the office", "office", "Where is Sandra?"));
  // what is no label is never right
  CHECK_FALSE(babilong("qa1", "attic", "attic", where));
}

TEST_CASE("LongBench v2 reads the stated letter, in brackets first") {
  CHECK(stated_choice("The correct answer is (B).") == 'B');
  CHECK(stated_choice("The correct answer is B") == 'B');
  CHECK(stated_choice("**The correct answer is (C)**") == 'C');
  CHECK(stated_choice("The correct answer is *(*D*)*") == 'D');
  CHECK(stated_choice("The correct answer is A. The correct answer is (D)") == 'D');
  CHECK(stated_choice("The correct answer is (A) or The correct answer is (B)") == 'A');
  CHECK(stated_choice("The correct answer is Because") == 'B');  // as there
  CHECK_FALSE(stated_choice("The correct answer is (E)"));
  CHECK_FALSE(stated_choice("the correct answer is (B)"));
  CHECK_FALSE(stated_choice("The correct answer is: (B)"));
  CHECK_FALSE(stated_choice("B"));
  CHECK_FALSE(stated_choice(""));
  CHECK_FALSE(stated_choice("The correct answer is ("));
  CHECK(stated_choice("The correct answer is (J)", 'J') == 'J');
  CHECK_FALSE(stated_choice("The correct answer is (J)", 'H'));
}

TEST_CASE("facts are held by one form of every list, as whole words") {
  CHECK(holds_facts("On the 14th? no, the 14 of january.", {{"14"}, {"January"}}));
  CHECK_FALSE(holds_facts("On the 14 of May", {{"14"}, {"January"}}));
  CHECK(holds_facts("a timetable", {{"railway timetable", "timetable"}}));
  CHECK_FALSE(holds_facts("timetables", {{"timetable"}}));
  CHECK(holds_facts("84,047", {{"84047"}}));
  CHECK(holds_facts("84 047", {{"84047"}}));
  CHECK_FALSE(holds_facts("184047", {{"84047"}}));
  CHECK(holds_facts("It is `v4.17.3`", {{"v4.17.3"}}));
  CHECK_FALSE(holds_facts("", {{"x"}}));
  CHECK_FALSE(holds_facts("x", {{""}}));
}

TEST_CASE("LongMemEval's answers are held by their words in order") {
  CHECK(holds_words("You bought the red, big bike!", "a red big bike"));
  CHECK_FALSE(holds_words("a bike, big and red", "red big bike"));
  CHECK_FALSE(holds_words("7 dayses", "7 days"));
  CHECK_FALSE(holds_words("anything", "the"));  // nothing of the answer is left
  CHECK(declines("You did not mention that."));
  CHECK(declines("I don't know"));
  CHECK_FALSE(declines("It was in May."));
}
