// SPDX-License-Identifier: Apache-2.0
#include "make/words.hpp"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace episodic::suites {
namespace {

constexpr std::string_view kAdjectives =
    "able absent active agile airy alert amber ample ancient angry antique apt arid artful "
    "ashen austere autumn awake azure bald bare barren basic bent big bitter black bland "
    "blank bleak blond blue blunt bold bony bossy brainy brave brief bright brisk broad "
    "broken bronze brown bulky bumpy burly busy calm candid careful cheap cheery chilly "
    "chubby civil clean clear clever cloudy clumsy coarse cold comic common cool copper "
    "coral costly cosy crafty crimson crisp cruel curly curved daily damp daring dark dear "
    "deep dense dim distant dizzy double drab dreary dry dull dusty eager early easy elder "
    "empty equal even exact faint fair faithful famous fancy fast fat feeble fertile few "
    "fierce fiery final fine firm first flat fond foolish formal fragile frank free fresh "
    "frosty frozen frugal full funny fussy gentle giant glad gloomy glossy golden good "
    "gracious grand grave gray great green grim gruff happy hard harsh hasty hazel healthy "
    "heavy hidden high hollow honest hot huge humble humid hungry icy idle ivory jolly "
    "jovial juicy keen kind large late lazy lean left light lively lonely long loose loud "
    "lovely low loyal lucky lunar mad major mellow merry mild minor misty modern modest "
    "moist narrow neat new nimble noble noisy northern novel odd old olive open orange "
    "ornate pale patient plain pleasant polite poor proud pure purple quaint quick quiet "
    "rapid rare raw ready red rich rigid ripe rosy rough round royal rude rustic sad salty "
    "sandy scarlet secret serious shady shallow sharp shiny short shy silent silver simple "
    "slender slim slow small smart smooth snowy sober soft solar solid sour southern spare "
    "spicy stale steady steep sticky stiff still stormy strange strict strong stubborn "
    "sudden sunny sweet swift tall tame tart tender thick thin thirsty tidy tiny tired "
    "tough tranquil true upper urban vague vast velvet violet vivid warm wary weak weary "
    "wet white whole wide wild windy wise witty wooden yellow young zealous";

constexpr std::string_view kNouns =
    "acorn actor album alley almond altar anchor ankle antler apple apron arch arrow "
    "artist atlas attic autumn axle badge badger bagel baker balcony bamboo banjo banner "
    "barley barn barrel basin basket beacon beaver bell belt bench berry bicycle bishop "
    "bison blanket blossom boat bonnet border bottle boulder bowl bracket branch brick "
    "bridge brook broom bucket buffalo bugle button cabin cabinet camel candle canoe "
    "canvas canyon captain caravan cargo carpet carrot castle cavern cedar cellar chalk "
    "chapel cherry chest chimney circle circus clerk cliff clock clover coach cobbler "
    "collar comet compass copper cottage cotton cradle crane crater cricket crown crystal "
    "curtain cushion dagger daisy dancer desert diamond dolphin donkey door dragon drawer "
    "drum eagle easel echo elbow elm ember engine envelope fabric falcon farmer feather "
    "fence ferry fiddle field finger flag flask flute forest fork fountain fox frame "
    "galaxy gallery garden garlic gate gazelle ginger glacier glove goblet goose grape "
    "gravel guitar hammer hamster harbor harp harvest hatchet hawk hedge helmet heron hill "
    "hinge hive honey horizon horn hotel hunter igloo inkwell insect island jacket jaguar "
    "jar jewel jungle kettle key king kite kitten ladder lagoon lake lamp lantern laurel "
    "lawyer leaf lemon lens letter lily lizard lobster locket lodge lumber magnet mango "
    "mantle maple marble market marsh mask meadow medal melon mirror mitten monkey moon "
    "mosaic moss mountain mule museum mustard napkin necklace needle nest nickel notebook "
    "nutmeg oak oar oasis ocean olive onion orbit orchard organ otter owl oyster packet "
    "paddle palace panda parcel parrot pasture peach pearl pebble pelican pencil pepper "
    "piano picnic pigeon pillow pine pirate pitcher planet plow plum pocket poet pond "
    "poppy porch portrait potato prairie prince pumpkin puppet quarry quartz queen quill "
    "quilt rabbit radish raft raven reef ribbon ring river robin rocket rope rose ruby "
    "saddle sailor salmon satchel scarf school scissors seal shadow shell shield shovel "
    "signal singer sled snail sparrow spider spoon spring squirrel stable statue stone "
    "stove stream sugar summit sunset swan table tailor teapot temple tent thimble thistle "
    "thorn thunder tiger timber toast tomato torch tower tractor train treasure trumpet "
    "tulip tunnel turnip turtle umbrella valley vase village vine violin volcano wagon "
    "walnut walrus warden water wheel whistle widow willow window winter wizard wolf yacht "
    "zebra zipper";

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

const std::vector<std::string_view>& adjectives() {
  static const std::vector<std::string_view> words = words_of(kAdjectives);
  return words;
}

const std::vector<std::string_view>& nouns() {
  static const std::vector<std::string_view> words = words_of(kNouns);
  return words;
}

}  // namespace

std::int64_t word_keys() { return static_cast<std::int64_t>(adjectives().size() * nouns().size()); }

std::string word_key(std::int64_t i) {
  const auto n = static_cast<std::size_t>(i);
  return fmt::format("{}-{}", adjectives()[n / nouns().size()], nouns()[n % nouns().size()]);
}

}  // namespace episodic::suites
