-- Moves a count away from its name, or says where it has moved.
--
--   KEYS[1]  the name that the count leaves
--   ARGV     how long the mark lasts at least, in milliseconds,
--            and, only to move it: the new name, as four words of 32 bits
--   reply    the new name, what the count begins with there, and the milliseconds that this lasts; nil
--            if the count has not moved, and shall not
--
-- The mark takes the place of the count: `moved <new name> <until when, in milliseconds> `, and then
-- the count: nothing, `text <the value>`, or `log <its entries>`. It stays there, since the pod that
-- moves it may end before the new name has it. A repeated call finds the mark, and changes nothing but
-- how long that lasts.
local key, least = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function keep(mark) redis.call('SET', key, mark, 'PX', math.max(redis.call('PTTL', key), least)) end

local value = redis.pcall('GET', key)
if type(value) == 'string' then
  local _, last, name, ends = value:find('^moved (%x+) (%d+) ')
  if name then
    keep(value)
    local lasts = math.max(0, tonumber(ends) - now)
    return { name, lasts > 0 and value:sub(last + 1) or '', lasts }
  end
end
if not ARGV[5] then return false end

if type(value) == 'table' then
  value = 'log ' .. table.concat(redis.call('LRANGE', key, 0, -1), ' ')
elseif value then
  value = 'text ' .. value
else
  value = ''
end
local lasts = math.max(0, redis.call('PTTL', key))
local words = { tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]) }
local name = string.format('%08x%08x%08x%08x', unpack(words))
keep(string.format('moved %s %.0f ', name, now + lasts) .. value)
return { name, value, lasts }
