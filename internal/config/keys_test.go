package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestPageTokenKeys(t *testing.T) {
	first, second := strings.Repeat("a", minKeyBytes), strings.Repeat("b", minKeyBytes)
	t.Setenv("TIDEMARK_API_PAGE_TOKEN_KEY_FILES", write(t, first+"\n")+", "+write(t, second))
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	if keys, err := c.API.PageTokenKeys(); err != nil || !reflect.DeepEqual(keys, [][]byte{[]byte(first), []byte(second)}) {
		t.Errorf("keys %q, %v", keys, err)
	}
	c.API.PageTokenKeyFiles[1] = write(t, "short")
	if keys, err := c.API.PageTokenKeys(); keys != nil || err == nil || !strings.Contains(err.Error(), "api.page_token_key_files[1]") || strings.Contains(err.Error(), "short") {
		t.Errorf("a short key: %v", err)
	}
	if keys, err := (API{}).PageTokenKeys(); keys != nil || err != nil {
		t.Errorf("no files: %v, %v", keys, err)
	}
}
