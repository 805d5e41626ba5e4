package config

import (
	"fmt"
	"os"
	"strings"
)

// minKeyBytes is the shortest key that HMAC-SHA256 is safe with: as long as the
// hash.
const minKeyBytes = 32

// HS256Key reads the shared key; white space at its ends does not count.
func (a Auth) HS256Key() ([]byte, error) { return readKey("auth.hs256_key_file", a.HS256KeyFile) }

// PageTokenKeys reads the keys of page tokens in their order; none if lists are
// not served. White space at their ends does not count.
func (a API) PageTokenKeys() ([][]byte, error) {
	var keys [][]byte
	for i, file := range a.PageTokenKeyFiles {
		key, err := readKey(fmt.Sprintf("api.page_token_key_files[%d]", i), file)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// readKey never repeats what is in the file.
func readKey(setting, file string) ([]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", setting, err)
	}
	key := []byte(strings.TrimSpace(string(b)))
	if len(key) < minKeyBytes {
		return nil, fmt.Errorf("reading %s: %s has %d bytes, under %d", setting, file, len(key), minKeyBytes)
	}
	return key, nil
}
