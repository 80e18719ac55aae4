-- A pod's heartbeat, on the key of all pods or of the pods of one domain.
--
--   KEYS[1]  the key
--   ARGV     pod, milliseconds until it expires, whether it leaves (0 or 1), most pods
--   reply    pods alive
--
-- The state is a sorted set: each pod with the time in milliseconds at which it expires. A heartbeat
-- that fails half-way, or arrives twice, does no harm: the next one corrects it.
local key, pod = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
if ARGV[3] == '1' then
  redis.call('ZREM', key, pod)
elseif redis.call('ZCARD', key) < tonumber(ARGV[4]) or redis.call('ZSCORE', key, pod) then
  redis.call('ZADD', key, now + tonumber(ARGV[2]), pod)
end
local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
if last[2] then redis.call('PEXPIREAT', key, tonumber(last[2]) + 1000) end
return redis.call('ZCARD', key)
