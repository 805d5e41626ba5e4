package topology

// Keys of privacy events, readable as those of key.go: account:u7,
// video:V9001, block:u7:u8.

// AccountKey is the key of an account's privacy events.
func AccountKey(account string) string { return subjectKey("account", account) }

// VideoKey is the key of a video's privacy events.
func VideoKey(video string) string { return subjectKey("video", video) }

// BlockKey is the key of the privacy events of one user's block of another.
func BlockKey(blocker, blocked string) string { return subjectKey("block", blocker, blocked) }

func subjectKey(sort string, ids ...string) string {
	b := []byte(sort)
	for _, id := range ids {
		b = appendEscaped(append(b, ':'), id)
	}
	return string(b)
}
