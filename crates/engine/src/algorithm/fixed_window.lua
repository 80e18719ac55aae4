-- One step of a fixed window: the same sums as `fixed_window.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1), limit, whether tokens of the next window are
--            asked for (0 or 1), window in seconds,
--            only if that is 0, windows of a calendar: the number of the first, and when it and the
--            five after it begin, in seconds,
--            and, only if tokens are returned: their number, and the window they were leased in
--            (none for a refund, which goes to the present one)
--   reply    tokens, the time in microseconds, and of the window that was asked: its number, its
--            count; or, if the time lies outside of the first three windows of the calendar, the time
--            alone, and nothing has changed
--
-- Lua's numbers are doubles, exact below 2^53. The limit is below 2^32 and the caller clamps want,
-- need and tokens back to 2^32, where they already mean "all"; so a count is at most 2^32. A time
-- is below 2^53 microseconds until the year 2255, and seconds below 2^32 make every quotient exact.
--
-- The state is a decimal number: the window (its last digits), then ten digits of count. Redis keeps
-- a number inside its object of 16 bytes; 12 packed bytes took 32. Only while tokens of the next
-- window are leased, a colon and ten digits with their count follow. The value names its window,
-- although the expiry seems to suffice: TIME and the clock that expires keys may differ at the edge
-- of a window, and so may the clocks of two masters. A count of the window after this one must be
-- continued, or that window would be leased twice.
-- SET is the last command, so a script that fails has changed nothing.
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local limit, next_window, seconds = tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
local time = redis.call('TIME')
local now, micros = tonumber(time[1]), tonumber(time[2])
local rest, first, window = 7, nil, nil
if seconds > 0 then
  window = math.floor(now / seconds)
else
  -- An empty window, of a day that the zone skipped, is never the present one.
  rest, first = 14, tonumber(ARGV[7])
  for i = 0, 2 do
    if tonumber(ARGV[8 + i]) <= now and now < tonumber(ARGV[9 + i]) then window = first + i end
  end
  if not window then return { now * 1000000 + micros } end
end
local back, lent_in = tonumber(ARGV[rest]), tonumber(ARGV[rest + 1])
local function starts(of)
  if seconds > 0 then return of * seconds end
  return tonumber(ARGV[8 + of - first])
end

-- Keeps the number below 2^63. No key lives until the same digits repeat.
local WINDOWS = 800000000
local TEN = '%d%d%d%d%d%d%d%d%d%d'
local stored, stored_next = 0, 0
local value = redis.call('GET', KEYS[1])
if value then
  local of, one, two = value:match('^(%d+)(' .. TEN .. ')$')
  if not of then of, one, two = value:match('^(%d+)(' .. TEN .. '):(' .. TEN .. ')$') end
  if not of then return redis.error_reply('FOREIGN ' .. KEYS[1] .. ' holds no count of ratelease') end
  of = tonumber(of)
  if of == (window + 1) % WINDOWS then window = window + 1 end
  if of == window % WINDOWS then
    stored, stored_next = tonumber(one), tonumber(two or 0)
  elseif of == (window - 1) % WINDOWS then
    stored = tonumber(two or 0)
  end
end

local count, next_count = stored, stored_next
if back and (not lent_in or lent_in == window) then
  -- Only the mark is removed: what was counted under a larger limit stays counted.
  if count == limit + 1 then count = limit end
  count = math.max(0, count - back)
elseif back and lent_in == window + 1 then
  next_count = math.max(0, next_count - back)
end
local left = math.max(0, limit - (next_window and next_count or count))
local tokens = 0
if need <= left then
  tokens = math.min(math.max(want, need), left)
  if next_window then next_count = next_count + tokens else count = count + tokens end
elseif ARGV[3] == '1' and not next_window then
  count = math.max(count, limit + 1)
end

-- A look writes nothing, and no call creates a key that means the same as its absence.
if count ~= stored or next_count ~= stored_next then
  local state, lasts = string.format('%d%010d', window % WINDOWS, count), 1
  if next_count > 0 then
    state, lasts = state .. string.format(':%010d', next_count), 2
  end
  -- A second past the last window's end: expiry can never take a count that is still in force.
  redis.call('SET', KEYS[1], state, 'PXAT', (starts(window + lasts) + 1) * 1000)
end
local at = now * 1000000 + micros
if next_window then return { tokens, at, window + 1, next_count } end
return { tokens, at, window, count }
