package paging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tidemark/tidemark/internal/pause"
)

// Client asks an API for pages.
type Client struct {
	BaseURL string // such as http://127.0.0.1:8080
	// Token is the bearer token of a user who may see the lists.
	Token string
}

// Entry of a list.
type Entry struct {
	User string
	At   time.Time // since when the user is in it
}

// Page of a list. Next is empty at the end of the list.
type Page struct {
	Entries []Entry
	Next    string
	Standby bool // a part of it was not answered by its owner
}

// errRefused says that a page comes later: 503 with Retry-After.
var errRefused = errors.New("refused with Retry-After")

const (
	// pageTimeout is far more than an API may keep a page waiting.
	pageTimeout  = 10 * time.Second
	maxPageBytes = 1 << 20
)

var httpClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute}}

// page asks once. The error is errRefused, ctx's, or what no API may answer.
func (c Client) page(ctx context.Context, list string, size int, after string) (Page, error) {
	query := url.Values{"pageSize": {strconv.Itoa(size)}}
	if after != "" {
		query.Set("pageToken", after)
	}
	asking, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(asking, http.MethodGet, c.BaseURL+list+"?"+query.Encode(), nil)
	if err != nil {
		return Page{}, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := httpClient.Do(req)
	if err != nil {
		return Page{}, errors.Join(ctx.Err(), err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPageBytes))
	switch {
	case err != nil:
		return Page{}, errors.Join(ctx.Err(), err)
	case resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "":
		return Page{}, errRefused
	case resp.StatusCode != http.StatusOK:
		return Page{}, fmt.Errorf("status %d, Retry-After %q: %.300s", resp.StatusCode, resp.Header.Get("Retry-After"), body)
	}
	return parsePage(body)
}

func parsePage(body []byte) (Page, error) {
	var answer struct {
		Items []struct {
			UserID                           string
			LikedAt, FavoritedAt, FollowedAt time.Time
		}
		NextPageToken *string
		Standby       bool
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Page{}, fmt.Errorf("a page that cannot be read: %w: %.300s", err, body)
	}
	p := Page{Standby: answer.Standby}
	for _, i := range answer.Items {
		e := Entry{User: i.UserID, At: i.LikedAt}
		for _, at := range []time.Time{i.FavoritedAt, i.FollowedAt} {
			if e.At.IsZero() {
				e.At = at
			}
		}
		p.Entries = append(p.Entries, e)
	}
	if answer.NextPageToken != nil {
		p.Next = *answer.NextPageToken
	}
	return p, nil
}

// MaxPage is the most entries of a page.
const MaxPage = 200

// All reads a list that nobody changes, once. A page that is refused is asked
// again until ctx ends.
func (c Client) All(ctx context.Context, list string) (all []Entry, err error) {
	const again = 100 * time.Millisecond
	for after := ""; ; {
		p, err := c.page(ctx, list, MaxPage, after)
		if errors.Is(err, errRefused) && pause.For(ctx, again) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", list, errors.Join(err, ctx.Err()))
		}
		all = append(all, p.Entries...)
		if p.Next == "" {
			return all, nil
		}
		after = p.Next
	}
}

// Has is nil when the first page of a list is answered now and has at least so
// many entries.
func (c Client) Has(ctx context.Context, list string, entries int) error {
	p, err := c.page(ctx, list, max(1, entries), "")
	if err == nil && len(p.Entries) < entries {
		err = fmt.Errorf("it has %d entries, %d are due", len(p.Entries), entries)
	}
	if err != nil {
		return fmt.Errorf("the first page of %s: %w", list, err)
	}
	return nil
}
