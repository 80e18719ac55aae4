-- One step of a sliding window: the same sums as `sliding_window.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1), hits that are owed, limit, window in seconds,
--            microseconds in a part of the window (1, or 1000000 where it is longer than a day),
--            and, only if tokens are returned: their number, and the window they were leased in
--            (none for a refund, which goes to the present one)
--   reply    tokens, the time in microseconds, window, its count, the count before
--
-- Lua's numbers are doubles, exact below 2^53. A limit, and so a count, is below 10^9, a window has
-- fewer than 2^37 parts, and their product is computed by halves.
--
-- The state is a decimal number of 19 digits: the window modulo 8 and one, nine digits of its count,
-- nine of the count before. Redis keeps a number inside its object of 16 bytes. The key expires long
-- before the same digit repeats. SET is the last command, so a script that fails has changed
-- nothing.
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local owed, limit = tonumber(ARGV[4]), tonumber(ARGV[5])
local seconds, part = tonumber(ARGV[6]), tonumber(ARGV[7])
local COUNT_MAX = 999999999
local time = redis.call('TIME')
local now, micros = tonumber(time[1]), tonumber(time[2])
local window = math.floor(now / seconds)

local stored, previous = 0, 0
local value = redis.call('GET', KEYS[1])
if value then
  local of, one, two =
    value:match('^([1-8])(%d%d%d%d%d%d%d%d%d)(%d%d%d%d%d%d%d%d%d)$')
  if not of then return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' holds no counts of ratelease') end
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
local high = math.floor(previous / 32768) * rest
local low = (high % parts) * 32768 + (previous % 32768) * rest
local weighed = math.floor(high / parts) * 32768 + math.ceil(low / parts)

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
  local state = string.format('%d%09d%09d', window % 8 + 1, count, previous)
  redis.call('SET', KEYS[1], state, 'PXAT', expires)
end
return { tokens, now * 1000000 + micros, window, count, previous }
