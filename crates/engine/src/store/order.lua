-- An order for one key: the pods forget its count, deny it for a time, or do so no longer.
--
--   KEYS[1]  the stream of orders
--   ARGV     the key as four words of 32 bits, 0 to reset, 1 to block or 2 to lift a block,
--            milliseconds until the order ends, most orders
--   reply    orders kept
--
-- An entry has one field, `<key> <reset, block or lift> <its end in milliseconds>`. One that has ended
-- makes room, and so does the former one of the same key that this one takes the place of. XADD comes
-- last, so a script that fails has removed nothing that was in force; pods that read the stream again
-- find the blocks in force there.
local stream, words = KEYS[1], { tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]) }
local kinds = { ['0'] = 'reset', ['1'] = 'block', ['2'] = 'lift' }
local kind, key = kinds[ARGV[5]], string.format('%08x%08x%08x%08x', words[1], words[2], words[3], words[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ends = now + tonumber(ARGV[6])

local last, ended = ends, {}
for _, entry in ipairs(redis.call('XRANGE', stream, '-', '+')) do
  local of, what, till = (entry[2][2] or ''):match('^(%x+) (%a+) (%d+)$')
  if not of then return redis.error_reply('FOREIGN ' .. stream .. ' holds no orders of ratelease') end
  till = tonumber(till)
  if till <= now or (of == key and (what == 'reset') == (kind == 'reset')) then
    ended[#ended + 1] = entry[1]
  else
    last = math.max(last, till)
  end
end
if redis.call('XLEN', stream) - #ended >= tonumber(ARGV[7]) then
  return redis.error_reply('FULL ' .. stream .. ' holds ' .. ARGV[7] .. ' orders that have not ended')
end
if #ended > 0 then redis.call('XDEL', stream, unpack(ended)) end
redis.call('XADD', stream, '*', 'order', string.format('%s %s %.0f', key, kind, ends))
redis.call('PEXPIREAT', stream, string.format('%.0f', last + 1000))
return redis.call('XLEN', stream)
