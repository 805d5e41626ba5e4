package reading

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// api is a small one that is right, but for what the test makes it do.
type api struct {
	mu     sync.Mutex
	facts  map[string][]topology.State // by user and target, by version
	tell   func(all []topology.State, least uint64) (version uint64, state topology.State)
	status int // 0: as it should be
}

func newAPI(t *testing.T) (*api, string) {
	t.Helper()
	a := &api{facts: map[string][]topology.State{}}
	a.tell = func(all []topology.State, _ uint64) (uint64, topology.State) {
		return uint64(len(all) - 1), all[len(all)-1]
	}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	return a, s.URL
}

func (a *api) of(user, target string) []topology.State {
	key := user + " " + target
	if a.facts[key] == nil {
		a.facts[key] = []topology.State{topology.Unliked}
	}
	return a.facts[key]
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status != 0 {
		w.WriteHeader(a.status)
		return
	}
	user := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	var body struct {
		DesiredState        string
		VideoIDs            []string
		MinRelationVersions map[string]uint64
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if r.Method == http.MethodPut {
		target := strings.Split(r.URL.Path, "/")[3]
		state, _ := topology.ParseState(topology.Like, body.DesiredState)
		a.facts[user+" "+target] = append(a.of(user, target), state)
		fmt.Fprintf(w, `{"state":%q,"relationVersion":%d}`, state, len(a.facts[user+" "+target])-1)
		return
	}
	var items []string
	for _, target := range body.VideoIDs {
		version, state := a.tell(a.of(user, target), body.MinRelationVersions[target])
		items = append(items, fmt.Sprintf(`{"videoId":%q,"myState":%q,"relationVersion":%d}`, target, state, version))
	}
	fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(items, ","))
}

// ask has users ask until there is enough to judge, or something is found.
func ask(t *testing.T, url string) (*oracle.Findings, Figures) {
	t.Helper()
	found := new(oracle.Findings)
	us, err := Start(Config{BaseURL: url, Token: func(user string) (string, error) { return user, nil }, Users: 2, Targets: 5, Every: time.Microsecond, Seed: 1, Findings: found})
	if err != nil {
		t.Fatal(err)
	}
	defer us.Stop()
	testenv.Eventually(t, 20*time.Second, func() error {
		if f := us.Figures(); found.Total() == 0 && f.Refused == 0 && (f.Reads < 200 || f.Writes < 50 || f.Named == 0) {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
	us.Stop()
	return found, us.Figures()
}

func TestARightAPIIsFoundRight(t *testing.T) {
	_, url := newAPI(t)
	if found, _ := ask(t, url); found.Total() != 0 {
		t.Error(found.Lines())
	}
}

// A cache that is late may be late where no version was named.
func TestLateIsNotWrong(t *testing.T) {
	a, url := newAPI(t)
	a.tell = func(all []topology.State, least uint64) (uint64, topology.State) {
		at := max(least, uint64(max(0, len(all)-2)))
		return at, all[at]
	}
	found, f := ask(t, url)
	if found.Total() != 0 || f.Late == 0 {
		t.Error(f, found.Lines())
	}
}

func TestWhatIsWrongIsFound(t *testing.T) {
	for class, tell := range map[oracle.Class]func([]topology.State, uint64) (uint64, topology.State){
		Below: func(all []topology.State, _ uint64) (uint64, topology.State) { return 0, all[0] },
		Wrong: func(all []topology.State, _ uint64) (uint64, topology.State) {
			return uint64(len(all) - 1), topology.Liked
		},
	} {
		a, url := newAPI(t)
		a.tell = tell
		if found, _ := ask(t, url); found.Counts()[class] == 0 {
			t.Errorf("%s was not found: %v", class, found.Lines())
		}
	}
	a, url := newAPI(t)
	a.tell = func(all []topology.State, _ uint64) (uint64, topology.State) { return uint64(len(all)), topology.Liked }
	if found, _ := ask(t, url); found.Counts()[Wrong] == 0 {
		t.Errorf("a version that never was is not found: %v", found.Lines())
	}
}

func TestAnAnswerThatNoAPIMayGive(t *testing.T) {
	a, url := newAPI(t)
	a.status = http.StatusInternalServerError
	if found, _ := ask(t, url); found.Counts()[Refused] == 0 {
		t.Errorf("it is not found: %v", found.Lines())
	}
}
