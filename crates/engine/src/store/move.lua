-- Moves a count away from its name, or says where it has moved.
--
--   KEYS[1]  the name that the count leaves
--   ARGV     how long the mark lasts at least, in milliseconds,
--            and, only to move it: the new name, as four words of 32 bits
--   reply    the new name, the number of the mark, what the count begins with there, and the
--            milliseconds that this lasts; nil if the count has not moved, and shall not. An error if
--            what is there is larger than any count
--
-- The mark takes the place of the count: `moved <new name> 0 <number> <until when, in milliseconds> `,
-- and then the count: nothing, `text <the value>`, or `log <its entries>`. The number is the time in
-- microseconds: begin.lua begins a count once for each mark, by its number. The count stays in the
-- mark, since the pod that moves it may end before the new name has it. A repeated call finds the
-- mark, and changes nothing but how long that lasts.
--
-- A mark without a number, `moved <new name> <until when> `, is that of an older version, which takes
-- the 0 of a mark with one for a count that has ended: it begins none, since it would do so again
-- after the count has become empty.
local key, least = KEYS[1], tonumber(ARGV[1])
-- A log of 10 000 times of 16 digits takes 170 kB, and any other count less.
local BYTES_MAX, ENTRIES_MAX = 262144, 10000
local function foreign() return redis.error_reply('FOREIGN ' .. key .. ' holds no count of ratelease') end
local time = redis.call('TIME')
local micros = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = math.floor(micros / 1000)
local function keep(mark) redis.call('SET', key, mark, 'PX', math.max(redis.call('PTTL', key), least)) end

local value = redis.pcall('GET', key)
if type(value) == 'string' and #value > BYTES_MAX then return foreign() end
if type(value) == 'string' and value:sub(1, 6) == 'moved ' then
  local _, last, name, id, ends = value:find('^moved (%x+) 0 (%d+) (%d+) ')
  if not name then
    _, last, name, ends = value:find('^moved (%x+) (%d+) ')
    id = ends
  end
  if name then
    keep(value)
    local lasts = math.max(0, tonumber(ends) - now)
    return { name, id, lasts > 0 and value:sub(last + 1) or '', lasts }
  end
end
if not ARGV[5] then return false end

if type(value) == 'table' then
  if redis.call('LLEN', key) > ENTRIES_MAX then return foreign() end
  value = 'log ' .. table.concat(redis.call('LRANGE', key, 0, -1), ' ')
  if #value > BYTES_MAX then return foreign() end
elseif value then
  value = 'text ' .. value
else
  value = ''
end
local lasts = math.max(0, redis.call('PTTL', key))
local words = { tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]) }
local name, id = string.format('%08x%08x%08x%08x', unpack(words)), string.format('%.0f', micros)
keep(string.format('moved %s 0 %s %.0f ', name, id, now + lasts) .. value)
return { name, id, value, lasts }
