-- One step of a sliding window: the same sums as `sliding_window.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1), hits that are owed, limit, window in seconds,
--            microseconds in a part of the window (1, or 1000000 where it is longer than a day),
--            and, only if tokens are returned: their number, and the window they were leased in
--            (none for a refund, which goes to the present one)
--   reply    tokens, the time in microseconds, window, its count, the count before
--
-- Lua's numbers are doubles, exact up to 2^53. A limit is below that, and the caller clamps want, need,
-- tokens back and what is owed to it; a count is cut to it too. A window has fewer than 2^37 parts,
-- and a count is multiplied with them by digits of 15 bits.
--
-- The state is a decimal number of 19 digits: the window modulo 8 and one, nine digits of its count,
-- nine of the count before. Redis keeps a number inside its object of 16 bytes. If a count needs more
-- digits, the state is the window modulo 8 and one, '=', the count, a colon and the count before, which
-- versions that count to nine digits take for a foreign value. The key expires long before the same
-- digit repeats. SET is the last command, so a script that fails has changed nothing.
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local owed, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local seconds, part = tonumber(ARGV[6]), tonumber(ARGV[7])
local COUNT_MAX, NINE_DIGITS_MAX = 9007199254740992, 999999999
local time = redis.call('TIME')
local now, micros = tonumber(time[1]), tonumber(time[2])
local window = math.floor(now / seconds)

local stored, previous = 0, 0
local value = redis.call('GET', KEYS[1])
if value then
  local of, one, two =
    value:match('^([1-8])(%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if not of then of, one, two = value:match('^([1-8])=(%d+):(%d+)$') end
  if not of then
    local code = value:sub(1, 6) == 'moved ' and 'RENAMED ' or 'FOREIGN '
    return redis.error_reply(code .. KEYS[1] .. ' holds no counts of ratelease')
  end
  local ahead = (tonumber(of) - 1 - window) % 8
  -- A master whose clock is behind continues the window that it finds.
  if ahead == 1 then window = window + 1 end
  if ahead <= 1 then
    stored, previous = tonumber(one), tonumber(two)
  elseif ahead == 7 then
    previous = tonumber(one)
  end
end

local count = stored
if ARGV[8] and (not ARGV[9] or tonumber(ARGV[9]) == window) then
  count = math.max(0, count - tonumber(ARGV[8]))
end
count = math.min(count + owed, COUNT_MAX)

-- The part of the previous count that one window's length up to now still covers, rounded up.
local parts, rest = seconds, (window + 1) * seconds - now
if part == 1 then
  parts, rest = seconds * 1000000, rest * 1000000 - micros
end
rest = math.min(rest, parts)
local weighed, over, digits = 0, 0, previous
for _, unit in ipairs(previous < 1073741824 and { 32768, 1 } or { 35184372088832, 1073741824, 32768, 1 }) do
  local product = over * 32768 + math.floor(digits / unit) * rest
  weighed, over, digits = weighed * 32768 + math.floor(product / parts), product % parts, digits % unit
end
if over > 0 then weighed = weighed + 1 end

local left = math.max(0, limit - count - weighed)
local tokens, spent = 0, 0
if need <= left then
  tokens = math.min(math.max(want, need), left)
  spent = tokens
elseif ARGV[3] == '1' then
  spent = left
end
count = math.min(count + spent, COUNT_MAX)

-- A look writes nothing, and no call creates a key that means the same as its absence.
if count ~= stored then
  -- A second past the next window's end: until then the count has weight.
  local expires = ((window + 2) * seconds + 1) * 1000
  local is_short = math.max(count, previous) <= NINE_DIGITS_MAX
  local state = string.format(is_short and '%d%09d%09d' or '%d=%d:%d', window % 8 + 1, count, previous)
  redis.call('SET', KEYS[1], state, 'PXAT', expires)
end
return { tokens, now * 1000000 + micros, window, count, previous }
