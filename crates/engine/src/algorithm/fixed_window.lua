-- One step of a fixed window: the same sums as `fixed_window.rs`, one key per call.
--
--   KEYS[1]  the key
--   ARGV     want, need, charge a denial (0 or 1), hits that are owed, limit, window in seconds,
--            whether tokens of the next window are asked for (0 or 1), whether what is counted
--            beyond the limit counts against the next windows (0 or 1),
--            only if the window has 0 seconds, windows of a calendar: the seconds of the longest,
--            the number of the first, and when it and the five after it begin, in seconds,
--            and, only if tokens are returned: their number, and the window they were leased in
--            (none for a refund, which goes to the present one)
--   reply    tokens, the time in microseconds, the window's number, its count, the tokens of the
--            next window that are leased, what each window pays of a debt (0 without one), and 1 if
--            the mark of a denial is in force, else 0; or, if the time lies outside of the first
--            three windows of the calendar, the time alone, and nothing has changed
--
-- Lua's numbers are doubles, exact up to 2^53. The limit is below that and the caller clamps want,
-- need, tokens back and what is owed to it, where the first three already mean "all", and a count is
-- cut to it too; a sum above it is rounded, but never to below it. A time is below 2^53 microseconds
-- until the year 2255, and seconds below 2^32 make every quotient of a time exact.
--
-- The state is a decimal number: the window (its last digits), then ten digits of count. Redis keeps
-- a number inside its object of 16 bytes; 12 packed bytes took 32. Only while tokens of the next
-- window are leased, a colon and ten digits with their count follow. If one of the two counts is
-- above 2^32, the state is the window, '=', the count, a colon and that of the next window: versions
-- that count up to 2^32 take this for a foreign value, and would cut a count in ten digits. While a
-- debt is carried over, the state has that form too, with a colon and what each window pays of the
-- debt: versions that do not know this take it for a foreign value, and would forget the debt.
-- The value names its window, although the expiry seems to suffice: TIME and the clock that expires
-- keys may differ at the edge of a window, and so may the clocks of two masters. A count of the window
-- after this one must be continued, or that window would be leased twice.
-- A denial is marked by two zeros before the window, and by a count that is one too large: versions to
-- which zeros say nothing take a count of one above the limit for the mark.
-- SET is the last command, so a script that fails has changed nothing.
local want, need = tonumber(ARGV[1]), tonumber(ARGV[2])
local owed, limit, seconds = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local next_window, carries = ARGV[7] == '1', ARGV[8] == '1'
local time = redis.call('TIME')
local now, micros = tonumber(time[1]), tonumber(time[2])
local window, first, rest = math.floor(now / seconds), nil, 9
if seconds == 0 then
  seconds, first, window, rest = tonumber(ARGV[9]), tonumber(ARGV[10]), nil, 17
  -- The window of a day that the zone skipped is empty, and never the present one.
  for i = 0, 2 do
    if tonumber(ARGV[11 + i]) <= now and now < tonumber(ARGV[12 + i]) then window = first + i end
  end
  if not window then return { now * 1000000 + micros } end
end
local back, lent_in = tonumber(ARGV[rest]), tonumber(ARGV[rest + 1])

-- Keeps the number below 2^63. No key lives until the same digits repeat.
local WINDOWS = 800000000
local TEN = '%d%d%d%d%d%d%d%d%d%d'
local COUNT_MAX, OLD_COUNT_MAX, CENTURY = 9007199254740992, 4294967296, 3153600000
local stored, stored_next, was_marked, pays = 0, 0, false, 0

-- What is left of a count after some windows, each of which pays for a part.
local WINDOWS_CARRIED = math.ceil(CENTURY / seconds)
local function carried(count, windows)
  return pays > 0 and windows < WINDOWS_CARRIED and math.max(0, count - pays * windows) or 0
end

-- The quotient of a count and what each window pays, rounded up. The division rounds, so that it may
-- be one too small.
local function windows_that_pay(count)
  local windows = math.ceil(count / pays)
  return windows * pays < count and windows + 1 or windows
end

-- When the window begins that comes so many windows later. Of the calendar only the next two are
-- known; a later end does no harm.
local function ends(windows)
  if not first then return (window + windows) * seconds end
  local known = math.min(windows, 2)
  return tonumber(ARGV[11 + window - first + known]) + (windows - known) * seconds
end

local value = redis.call('GET', KEYS[1])
if value then
  local of, one, two = value:match('^(%d+)(' .. TEN .. ')$')
  if not of then of, one, two = value:match('^(%d+)(' .. TEN .. '):(' .. TEN .. ')$') end
  if not of then of, one, two = value:match('^(%d+)=(%d+):(%d+)$') end
  local each
  if not of then of, one, two, each = value:match('^(%d+)=(%d+):(%d+):(%d+)$') end
  if not of then
    local code = value:sub(1, 6) == 'moved ' and 'RENAMED ' or 'FOREIGN '
    return redis.error_reply(code .. KEYS[1] .. ' holds no count of ratelease')
  end
  local has_mark = #of > 2 and of:sub(1, 2) == '00'
  of = tonumber(of)
  if of == (window + 1) % WINDOWS then window = window + 1 end
  stored, stored_next, pays = tonumber(one), tonumber(two or 0), tonumber(each or 0)
  if has_mark then stored = math.max(0, stored - 1) end
  was_marked = has_mark and stored == limit
  if of ~= window % WINDOWS then
    local elapsed = (window - of) % WINDOWS
    stored = math.min(stored_next + carried(stored, 1), COUNT_MAX)
    stored_next, was_marked = 0, false
    if elapsed > 1 then
      stored = elapsed < WINDOWS_CARRIED and carried(stored, elapsed - 1) or 0
    end
    if stored <= pays then pays = 0 end
  end
end

-- An ask whose rule carries debts over decides what each window pays; a limit of 0 leaves it to the
-- limit before, or pays one token.
local paid_before, lends_nothing = pays, want == 0 and need == 0 and owed == 0
if carries and not lends_nothing then pays = limit > 0 and limit or math.max(pays, 1) end

local count, next_count, is_marked = stored, stored_next, was_marked
if back and (not lent_in or lent_in == window) then
  count, is_marked = math.max(0, count - back), false
elseif back and lent_in == window + 1 then
  next_count = math.max(0, next_count - back)
end
if not next_window and owed > 0 then
  count, is_marked = math.min(count + owed, COUNT_MAX), false
end
local left = math.max(0, limit - (next_window and next_count + carried(count, 1) or count))
local tokens = 0
if need <= left then
  tokens = math.min(math.max(want, need), left)
  if next_window then next_count = next_count + tokens else count = count + tokens end
elseif ARGV[3] == '1' and not next_window and count <= limit then
  count, is_marked = limit, true
end
if math.max(count, next_count) <= pays then pays = 0 end

-- A look writes nothing, and no call creates a key that means the same as its absence.
if count ~= stored or next_count ~= stored_next or is_marked ~= was_marked or pays ~= paid_before then
  local of = (is_marked and '00' or '') .. string.format('%d', window % WINDOWS)
  local counted = is_marked and count + 1 or count
  local state = of .. string.format('%010d', counted)
  if pays > 0 then
    state = of .. string.format('=%d:%d:%d', counted, next_count, pays)
  elseif math.max(counted, next_count) > OLD_COUNT_MAX then
    state = of .. string.format('=%d:%d', counted, next_count)
  elseif next_count > 0 then
    state = state .. string.format(':%010d', next_count)
  end
  local lasts = next_count > 0 and 2 or 1
  if pays > 0 then
    local paying = windows_that_pay(next_count + carried(count, 1)) + 1
    lasts = math.max(lasts, math.min(paying, WINDOWS_CARRIED))
  end
  -- A second past the last window's end: expiry can never take a count that is still in force.
  redis.call('SET', KEYS[1], state, 'PXAT', (ends(lasts) + 1) * 1000)
end
return { tokens, now * 1000000 + micros, window, count, next_count, pays, is_marked and 1 or 0 }
