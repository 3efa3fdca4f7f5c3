"""Lists the formats of strings that grammars follow, as expressions where the library has none."""

# Those that the library follows.
FORMATS = {"duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAYS = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"({_YEAR}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
_ZONE = "([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HEX = "[0-9a-fA-F]"
_BASE64 = "[A-Za-z0-9_-]"
# Dates that exist, which Python reads: there is no year 0 and no leap second. pydantic writes times without a zone.
AS_PATTERNS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}[tT]{_TIME}{_ZONE}$", "time": f"^{_TIME}{_ZONE}?$"} | {
    f"uuid{version}": f"^{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}$"
    for version in range(1, 9)
}
# zod writes no pattern for these; what the parts of a token hold is not followed.
AS_PATTERNS |= {"jwt": rf"^{_BASE64}+\.{_BASE64}+\.{_BASE64}*$"}
AS_CHOICES = {"ipvanyaddress": [{"format": "ipv4"}, {"format": "ipv6"}]}
KNOWN = {*FORMATS, *AS_PATTERNS, *AS_CHOICES}
