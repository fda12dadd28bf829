// The search takes a leading - for "without this word". A flag is meant by its name: --max-lag is
// searched for as max-lag.
for (const event of ["input", "keyup"]) {
  window.addEventListener(
    event,
    ({ target }) => {
      if (!target.matches?.(".md-search__input")) return;
      const query = target.value.replace(/(^|\s)--+(?=\w)/g, "$1");
      if (query !== target.value) target.value = query;
    },
    true, // before the search reads it
  );
}
